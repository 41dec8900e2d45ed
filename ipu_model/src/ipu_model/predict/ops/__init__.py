"""What ops cost, one file for each family: which kinds of ops belong to it, and the work that they take.

To add an op, write its `Rule` in the file of its family, or `register` one of your own.
"""

from __future__ import annotations

from ipu_model.errors import Error
from ipu_model.predict.ops import (
    contractions,
    ctc,
    estimates,
    host_call,
    images,
    indexing,
    losses,
    moves,
    normalisation,
    points,
    pointwise,
    recurrent,
    reductions,
)
from ipu_model.predict.ops.rule import Rule
from ipu_model.predict.remembered import forget_everything

_FAMILIES = (
    contractions, ctc, estimates, host_call, images, indexing, losses, moves, normalisation, points, pointwise,
    recurrent, reductions,
)  # fmt: skip
_rules: dict[str, Rule] = {}


def register(rule: Rule) -> None:
    """Cost ops of the kinds that `rule` names by it, from now on; what was modelled without it is forgotten.

    Raises:
        Error: one of them has a rule already.
    """
    taken = [kind for kind in rule.kinds if kind in _rules]
    if taken:
        raise Error(f"Ops called {', '.join(taken)} are costed by another rule already: register other names.")
    _rules.update(dict.fromkeys(rule.kinds, rule))
    forget_everything()


def rule_of(kind: str) -> Rule | None:
    """Return how ops of a kind are costed; `None` for those without a formula."""
    return _rules.get(kind)


for _family in _FAMILIES:
    for _rule in _family.RULES:
        register(_rule)
