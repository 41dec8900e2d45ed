"""The IPU Model's engine: a replay computes the captured graph, and the performance model reads its `Step`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipu_model.guards import refuse_graphcores, refuse_other_torch

if TYPE_CHECKING:
    from ipu_model.explore import scaling
    from ipu_model.explore.advise import advise
    from ipu_model.explore.fit import make_it_fit
    from ipu_model.explore.loader import time_loader
    from ipu_model.explore.what_if import profile, profile_module, sweep, what_if
    from ipu_model.predict.host import HostWork
    from ipu_model.predict.profile import Profile

# Both pyproject.toml and whatever names a version read this line.
__version__ = "1.0.0"

__all__ = [
    "HostWork",
    "Profile",
    "__version__",
    "advise",
    "make_it_fit",
    "profile",
    "profile_module",
    "scaling",
    "sweep",
    "time_loader",
    "what_if",
]

# Whatever of this distribution is imported, this module comes first.
refuse_graphcores(__version__)
refuse_other_torch(__version__)

_HOMES = {
    "HostWork": "ipu_model.predict.host",
    "Profile": "ipu_model.predict.profile",
    "advise": "ipu_model.explore.advise",
    "make_it_fit": "ipu_model.explore.fit",
    "profile": "ipu_model.explore.what_if",
    "profile_module": "ipu_model.explore.what_if",
    "sweep": "ipu_model.explore.what_if",
    "time_loader": "ipu_model.explore.loader",
    "what_if": "ipu_model.explore.what_if",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: commands such as `--help` then need no torch."""
    if name == "scaling":
        return import_module("ipu_model.explore.scaling")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
