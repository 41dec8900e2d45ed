"""Square roots at a steady speed."""

from __future__ import annotations

import torch
from torch import Tensor


def root(x: Tensor, *, out: Tensor) -> Tensor:
    """Write the square root of `x` to `out` and return it; 0 gives 0, negative numbers give NaN.

    On CPUs where `torch.sqrt` is the vendor's vector library, zeros make it five and subnormals thirty times
    slower; second moments, in half precision above all, are full of both.
    """
    return torch.rsqrt(x, out=out).reciprocal_()
