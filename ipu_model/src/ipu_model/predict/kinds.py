"""Kinds of ops (`Op.kind`) that several parts of the model treat alike."""

from __future__ import annotations

from ipu_model.step import Step, Tensor

NORMS = ("native_batch_norm", "native_layer_norm", "native_group_norm")
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot")
CONVOLUTION = "convolution"
CONTRACTIONS = (CONVOLUTION, *PRODUCTS)

# The parts of an op that makes the gradients of a convolution, in the order of its results.
GRADIENT_PARTS = ("data gradient", "weight gradient", "bias gradient")
DATA_GRADIENT, WEIGHT_GRADIENT, BIAS_GRADIENT = GRADIENT_PARTS

# Ops that draw the mask of a dropout, with the place of the mask among their results.
_MASKS = {"bernoulli": 0, "native_dropout": 1}


def dropout_masks(step: Step) -> tuple[Tensor, ...]:
    """Return the masks of dropouts: the backward pass draws them again from the same seed (PopART's DropoutGradOp)."""
    return tuple(
        result for op in step.ops if op.kind in _MASKS for result in step.results_of(op)
        if result.index == _MASKS[op.kind]
    )  # fmt: skip
