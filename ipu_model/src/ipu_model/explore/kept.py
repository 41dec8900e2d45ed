"""The settings that a user can ask a search to leave as they are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from ipu_model.errors import Error

KEEP: Mapping[str, str] = {
    "precision": "the types of weights, activations, partial sums and optimiser state",
    "optimiser": "the types of gradient accumulators and optimiser state",
    "micro-batch": "the rows of a micro-batch",
    "replicas": "the number of replicas",
    "split": "the blocks and the number of IPUs of a replica",
    "machine": "the machine",
}
"""What each name stands for. The global batch always stays as it is."""


def kept(names: str | Iterable[str]) -> frozenset[str]:
    """Check and return the names of what must stay as it is.

    Raises:
        Error: a name that is not in `KEEP`.
    """
    found = [names] if isinstance(names, str) else list(names)
    for name in found:
        if name not in KEEP:
            near = difflib.get_close_matches(str(name), KEEP, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise Error(f"keep cannot name {name!r}.{hint} It takes {', '.join(KEEP)}.")
    return frozenset(found)
