"""`identity_loss`: says which value a training model is differentiated from."""

from __future__ import annotations

import torch
from torch import Tensor

from ipu_model import tracing


def identity_loss(x: Tensor, reduction: str) -> Tensor:
    """Return the `"sum"` or `"mean"` of `x` (0-dim), or with `"none"` a copy of it, marked as a loss.

    Back-propagation starts from the marked value, with ones, unless another marked value is computed from it.

    Raises:
        AssertionError: another reduction, or `x` is not a tensor.
    """
    assert isinstance(x, torch.Tensor), f"identity_loss takes a torch.Tensor, not {type(x)}."
    assert reduction in ("sum", "mean", "none"), (
        f"Unsupported reduction type! identity_loss takes 'sum', 'mean' or 'none'; got {reduction!r}."
    )
    result = _reduce(x, reduction)
    trace = tracing.current()
    if trace is not None:
        trace.mark_loss(result)
    return result


def _reduce(x: Tensor, reduction: str) -> Tensor:
    if reduction == "sum":
        return x.sum()
    return x.mean() if reduction == "mean" else x.clone()
