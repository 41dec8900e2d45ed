"""Comparing nested results in tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def allclose(ref: Any, other: Any) -> bool:
    """Return whether two tensors, or two equally nested tuples or lists of tensors, are close element by element."""
    if isinstance(ref, (tuple, list)):
        same_shape = isinstance(other, (tuple, list)) and len(ref) == len(other)
        return same_shape and all(allclose(a, b) for a, b in zip(ref, other))
    if isinstance(ref, Tensor):
        return isinstance(other, Tensor) and torch.allclose(ref, other)
    return bool(ref == other)
