"""Sets of points: `fps` (farthest point sampling) and `nearest` (nearest neighbours)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipu_model.capture.device_ops.points import farthest_points, nearest_points
from poptorch._impl import createPoptorchError

Batch = list[int] | Tensor | None


def fps(src: Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False) -> Tensor:
    """Return the rows of `src` that farthest point sampling picks, as indices of all rows.

    Sample i of `src` `[points, features]` is the rows `ptr[i] : ptr[i + 1]`; of its n rows `ceil(n * ratio)` are
    picked: the first (or with `random_start` any), then always the one farthest from those already picked.

    Raises:
        Error: arguments of other types, fewer than two entries in `ptr`, entries that are not sorted or leave `src`,
            or a ratio that is not in (0, 1].
    """
    _check_sampling(src, ptr, ratio, random_start)
    sizes = [end - begin for begin, end in pairwise(ptr)]
    counts = [_share(size, ratio) for size in sizes]
    starts = None
    if random_start:
        rows = torch.tensor(sizes, device=src.device)
        # fp32 draws are below 1, but their product with a large count can be rounded up to the count.
        drawn = (torch.rand(len(sizes), device=src.device) * rows).long()
        starts = torch.minimum(drawn, (rows - 1).clamp(min=0))
    return farthest_points(src, list(ptr), counts, starts)


def nearest(x: Tensor, y: Tensor, batch_x: Batch = None, batch_y: Batch = None) -> Tensor:
    """Return for every row of `x` the index of the row of `y` that is nearest to it (Euclidean distance).

    `x` is `[n, features]` or `[n]`, `y` `[m, features]` or `[m]`. Batch vectors, sorted lists or tensors of `n` and `m`
    whole numbers, keep apart rows of different batch elements; one that is missing beside another is all zeros.

    Raises:
        Error: arguments of other types.
        ValueError: ranks above 2, other numbers of features, batch vectors of other lengths; lists that are not sorted
            or do not hold the same batch elements. What tensors hold is not looked at.
    """
    for name, tensor in (("x", x), ("y", y)):
        if not isinstance(tensor, torch.Tensor):
            raise createPoptorchError(f"poptorch.nearest: {name} must be a tensor, not {type(tensor)}.")
    x, y = _as_rows("x", x), _as_rows("y", y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"poptorch.nearest: x and y must have the same number of features, not {x.shape[1]} and {y.shape[1]}."
        )
    if y.shape[0] == 0 and x.shape[0] > 0:
        raise ValueError("poptorch.nearest: y has no rows, so no row of x has a neighbour.")
    return nearest_points(x, y, *_batches(x, y, batch_x, batch_y))


def _share(size: int, ratio: float) -> int:
    """Return `ceil(size * ratio)`, computed in fp32 as `torch_cluster` does: 0.07 of 100 is 7, not 8."""
    return math.ceil(float(np.float32(ratio) * np.float32(size)))


def _check_sampling(src: Any, ptr: Any, ratio: Any, random_start: Any) -> None:
    if not isinstance(src, torch.Tensor) or src.dim() == 0:
        raise createPoptorchError(f"poptorch.fps: src must be a tensor [points, features], not {_kind(src)}.")
    if not isinstance(ptr, list) or not all(type(entry) is int for entry in ptr):
        raise createPoptorchError(f"poptorch.fps: ptr must be a list of ints, not {_kind(ptr)}.")
    if len(ptr) < 2:
        raise createPoptorchError(f"poptorch.fps: ptr must have at least 2 entries, the ends of a sample; got {ptr}.")
    if ptr[0] < 0 or ptr[-1] > src.shape[0] or any(end < begin for begin, end in pairwise(ptr)):
        raise createPoptorchError(
            f"poptorch.fps: ptr must increase from 0 to at most the {src.shape[0]} rows of src; got {ptr}."
        )
    if type(ratio) not in (float, int) or not 0 < ratio <= 1:
        raise createPoptorchError(f"poptorch.fps: ratio must be a float above 0 and at most 1, not {ratio!r}.")
    if not isinstance(random_start, bool):
        raise createPoptorchError(f"poptorch.fps: random_start must be a bool, not {_kind(random_start)}.")


def _kind(value: Any) -> str:
    return "one without dimensions" if isinstance(value, torch.Tensor) else str(type(value))


def _as_rows(name: str, tensor: Tensor) -> Tensor:
    if tensor.dim() not in (1, 2):
        raise ValueError(f"poptorch.nearest: {name} must have 1 or 2 dimensions, not {tensor.dim()}.")
    return tensor.unsqueeze(1) if tensor.dim() == 1 else tensor


def _batches(x: Tensor, y: Tensor, batch_x: Batch, batch_y: Batch) -> tuple[Tensor | None, Tensor | None]:
    """Return both batch vectors as tensors, or neither."""
    _check_batch("batch_x", batch_x, x)
    _check_batch("batch_y", batch_y, y)
    if batch_x is None and batch_y is None:
        return None, None
    batch_x = [0] * x.shape[0] if batch_x is None else batch_x
    batch_y = [0] * y.shape[0] if batch_y is None else batch_y
    if isinstance(batch_x, list) and isinstance(batch_y, list) and set(batch_x) != set(batch_y):
        raise ValueError(
            "poptorch.nearest: batch_x and batch_y must hold the same batch elements, not "
            f"{sorted(set(batch_x))} and {sorted(set(batch_y))}."
        )
    given = next((batch.dtype for batch in (batch_x, batch_y) if isinstance(batch, torch.Tensor)), torch.int64)
    return _as_tensor(batch_x, given, x), _as_tensor(batch_y, given, y)


def _as_tensor(batch: list[int] | Tensor, dtype: torch.dtype, like: Tensor) -> Tensor:
    return batch if isinstance(batch, torch.Tensor) else torch.tensor(batch, dtype=dtype, device=like.device)


def _check_batch(name: str, batch: Any, rows: Tensor) -> None:
    if batch is None:
        return
    if isinstance(batch, torch.Tensor):
        if tuple(batch.shape) != (rows.shape[0],):
            raise ValueError(f"poptorch.nearest: {name} must have {rows.shape[0]} entries, not {list(batch.shape)}.")
        return
    if not isinstance(batch, list) or not all(type(entry) is int for entry in batch):
        raise createPoptorchError(
            f"poptorch.nearest: {name} must be a list of ints, a tensor or None, not {type(batch)}."
        )
    if len(batch) != rows.shape[0]:
        raise ValueError(f"poptorch.nearest: {name} must have {rows.shape[0]} entries, not {len(batch)}.")
    if any(after < before for before, after in pairwise(batch)):
        raise ValueError(f"poptorch.nearest: {name} must be sorted.")
