"""The costs of ops, one file for each family: each function computes the work of the kinds of ops that it names.

To add an op, write such a function in the file of its family, or `register` a rule of your own.
"""

from __future__ import annotations

from ipu_model.predict.ops import (  # noqa: F401 - each registers its rules
    contractions,
    indexing,
    moves,
    normalisation,
    pointwise,
    reductions,
    softmax_and_losses,
    spatial,
)
from ipu_model.predict.ops.rule import register, rule_of

__all__ = ["register", "rule_of"]
