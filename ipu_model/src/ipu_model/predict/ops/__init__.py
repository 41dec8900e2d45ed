"""The costs of ops, one file for each family: it lists the kinds of ops in the family, names them, and computes their
work.

To add an op, write its `Rule` in the file of its family, or `register` one of your own.
"""

from __future__ import annotations

from ipu_model.errors import Error
from ipu_model.predict.ops import (
    contractions,
    estimates,
    indexing,
    losses,
    moves,
    normalisation,
    pointwise,
    recurrent,
    reductions,
    spatial,
)
from ipu_model.predict.ops.rule import Rule
from ipu_model.predict.remembered import forget_everything

_rules: dict[str, Rule] = {}


def register(rule: Rule) -> None:
    """Use `rule` for the kinds of ops that it names; this clears all results that were modelled without it.

    Raises:
        Error: one of them has a rule already.
    """
    taken = [kind for kind in rule.kinds if kind in _rules]
    if taken:
        raise Error(f"Ops called {', '.join(taken)} are costed by another rule already: register other names.")
    _rules.update(dict.fromkeys(rule.kinds, rule))
    forget_everything()


def rule_of(kind: str) -> Rule | None:
    """Return the rule for a kind of op, or `None` if there is no formula."""
    return _rules.get(kind)


_FAMILIES = (contractions, estimates, indexing, losses, moves, normalisation, pointwise, recurrent, reductions, spatial)
for _family in _FAMILIES:
    for _rule in _family.RULES:
        register(_rule)
