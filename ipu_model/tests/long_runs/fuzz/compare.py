"""Compare what came back with what plain PyTorch computes: structure, shapes, types, NaN, values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

_TOLERANCE = 2e-4


def difference(got: Any, expected: Any, *, values: bool, nan: bool = True) -> str:
    """Return in words what is wrong with `got`, or nothing.

    `values` compares numbers too, `nan` refuses NaN where `expected` has none.
    """
    (ours, structure), (theirs, wanted) = tree_flatten(got), tree_flatten(expected)
    if structure != wanted:
        return f"the structure is {structure}, not {wanted}"
    for position, (value, reference) in enumerate(zip(ours, theirs, strict=True)):
        complaint = _leaf(value, reference, values, nan)
        if complaint:
            return f"leaf {position}: {complaint}"
    return ""


def _leaf(value: Any, reference: Any, values: bool, nan: bool) -> str:
    if not isinstance(reference, Tensor):
        return "" if value == reference else f"{value!r} instead of {reference!r}"
    if value.shape != reference.shape:
        return f"shape {tuple(value.shape)} instead of {tuple(reference.shape)}"
    if values and value.dtype != reference.dtype:
        return f"type {value.dtype} instead of {reference.dtype}"
    if nan and value.is_floating_point() and bool((value.isnan() & ~reference.isnan()).any()):
        return f"NaN where plain PyTorch has {reference[value.isnan()][:3].tolist()}"
    if not values:
        return ""
    a, b = value.detach().to(torch.float64), reference.detach().to(torch.float64)
    if torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        return ""
    return f"values {a.flatten()[:4].tolist()} instead of {b.flatten()[:4].tolist()}"
