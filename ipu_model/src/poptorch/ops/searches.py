"""What the device looks for: nearest neighbours, the farthest points of a set, the likeliest label sequences."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipu_model.capture import tracing
from ipu_model.capture.device_ops.ctc import beam_search
from ipu_model.capture.device_ops.points import farthest_points, nearest_points
from poptorch.ops._tracing import check, require_tensors

Batch = list[int] | Tensor | None


def fps(src: Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False) -> Tensor:
    """Return the rows of `src` that farthest point sampling picks, as indices of all rows.

    Sample i of `src` `[points, features]` is the rows `ptr[i] : ptr[i + 1]`; of its n rows `ceil(n * ratio)` are
    picked: the first (or with `random_start` any), then always the one farthest from those already picked.
    Raises `poptorch.Error` for arguments of other types, fewer than two entries in `ptr`, entries that are not sorted
    or leave `src`, and a ratio that is not in (0, 1].
    """
    points: Any = src
    is_tensor = isinstance(points, torch.Tensor) and points.dim() > 0
    check(is_tensor, f"poptorch.fps: src must be a tensor [points, features], not {_kind(src)}.")
    check(_are_ints(ptr), f"poptorch.fps: ptr must be a list of ints, not {_kind(ptr)}.")
    check(len(ptr) > 1, f"poptorch.fps: ptr must have at least 2 entries, the ends of a sample; got {ptr}.")
    increases = ptr[0] >= 0 and ptr[-1] <= src.shape[0] and all(begin <= end for begin, end in pairwise(ptr))
    check(increases, f"poptorch.fps: ptr must increase from 0 to at most the {src.shape[0]} rows of src; got {ptr}.")
    is_ratio = type(ratio) in (float, int) and 0 < ratio <= 1
    check(is_ratio, f"poptorch.fps: ratio must be a float above 0 and at most 1, not {ratio!r}.")
    is_bool = isinstance(random_start, bool)
    check(is_bool, f"poptorch.fps: random_start must be a bool, not {_kind(random_start)}.")
    sizes = [end - begin for begin, end in pairwise(ptr)]
    # In fp32 as `torch_cluster` computes it: 0.07 of 100 is 7, not 8.
    counts = [math.ceil(float(np.float32(ratio) * np.float32(size))) for size in sizes]
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

    Raises `poptorch.Error` for arguments of other types, `ValueError` for ranks above 2, other numbers of features,
    batch vectors of other lengths, and lists that are not sorted or do not hold the same batch elements. What tensors
    hold is not looked at.
    """
    require_tensors("poptorch.nearest", x=x, y=y)
    x, y = _as_rows("x", x), _as_rows("y", y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"poptorch.nearest: x and y must have the same number of features, not {x.shape[1]} and {y.shape[1]}."
        )
    if y.shape[0] == 0 and x.shape[0] > 0:
        raise ValueError("poptorch.nearest: y has no rows, so no row of x has a neighbour.")
    return nearest_points(x, y, *_batches(x, y, batch_x, batch_y))


def _are_ints(value: Any) -> bool:
    return isinstance(value, list) and all(type(entry) is int for entry in value)


def _kind(value: Any) -> str:
    return "one without dimensions" if isinstance(value, torch.Tensor) else str(type(value))


def _as_rows(name: str, tensor: Tensor) -> Tensor:
    if tensor.dim() not in (1, 2):
        raise ValueError(f"poptorch.nearest: {name} must have 1 or 2 dimensions, not {tensor.dim()}.")
    return tensor.unsqueeze(1) if tensor.dim() == 1 else tensor


def _batches(x: Tensor, y: Tensor, batch_x: Batch, batch_y: Batch) -> tuple[Tensor | None, Tensor | None]:
    _check_batch("batch_x", batch_x, x)
    _check_batch("batch_y", batch_y, y)
    if batch_x is None and batch_y is None:
        return None, None
    batch_x = [0] * len(x) if batch_x is None else batch_x
    batch_y = [0] * len(y) if batch_y is None else batch_y
    if isinstance(batch_x, list) and isinstance(batch_y, list) and set(batch_x) != set(batch_y):
        raise ValueError(
            "poptorch.nearest: batch_x and batch_y must hold the same batch elements, not "
            f"{sorted(set(batch_x))} and {sorted(set(batch_y))}."
        )
    dtype = next((batch.dtype for batch in (batch_x, batch_y) if isinstance(batch, torch.Tensor)), torch.int64)
    return tuple(  # type: ignore[return-value]  # two of them
        batch if isinstance(batch, torch.Tensor) else torch.tensor(batch, dtype=dtype, device=x.device)
        for batch in (batch_x, batch_y)
    )


def _check_batch(name: str, batch: Any, rows: Tensor) -> None:
    if batch is None:
        return
    is_tensor = isinstance(batch, torch.Tensor)
    fits = is_tensor or _are_ints(batch)
    check(fits, f"poptorch.nearest: {name} must be a list of ints, a tensor or None, not {type(batch)}.")
    entries = list(batch.shape) if is_tensor else len(batch)
    if entries not in (rows.shape[0], [rows.shape[0]]):
        raise ValueError(f"poptorch.nearest: {name} must have {rows.shape[0]} entries, not {entries}.")
    if not is_tensor and any(after < before for before, after in pairwise(batch)):
        raise ValueError(f"poptorch.nearest: {name} must be sorted.")


_BEAMS = "poptorch.ctc_beam_search_decoder"


def ctc_beam_search_decoder(
    probs: Tensor, lengths: Tensor, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities, lengths and labels of the `top_paths` likeliest paths of each sample, likeliest first.

    `probs` are log-probabilities `[T, N, C]`, `lengths` `[N]` how many of the T steps belong to each sample. Results
    are negative log-probabilities `[N, top_paths]`, lengths `[N, top_paths]` (int32) and labels `[N, top_paths, T]`
    (int32, -1 behind the end). On the CPU they are zeros, as in PopTorch.

    Raises `poptorch.Error` for arguments of other types or shapes, a `blank` that is no class, more paths than beams.
    """
    require_tensors(_BEAMS, probs=probs, lengths=lengths)
    are_probabilities = probs.dim() == 3 and probs.dtype.is_floating_point
    given = f"not {probs.dtype} {list(probs.shape)}"
    check(are_probabilities, f"{_BEAMS}: probs must be log-probabilities [time, batch, classes], {given}.")
    steps, samples, classes = probs.shape
    are_lengths = not lengths.dtype.is_floating_point and tuple(lengths.shape) == (samples,)
    given = f"not {lengths.dtype} {list(lengths.shape)}"
    check(are_lengths, f"{_BEAMS}: lengths must hold a whole number for each of the {samples} samples, {given}.")
    for name, number in (("blank", blank), ("beam_width", beam_width), ("top_paths", top_paths)):
        is_int = type(number) is int
        check(is_int, f"{_BEAMS}: {name} must be an int, fixed when compiling; got {number!r}.")
    check(0 <= blank < classes, f"{_BEAMS}: blank must be one of the {classes} classes, not {blank}.")
    between = f"between 1 and beam_width ({beam_width})"
    check(1 <= top_paths <= beam_width, f"{_BEAMS}: top_paths must be {between}, not {top_paths}.")
    if tracing.is_tracing():
        return beam_search(probs, lengths, blank, beam_width, top_paths)
    return (
        probs.new_zeros(samples, top_paths),
        probs.new_zeros(samples, top_paths, dtype=torch.int32),
        probs.new_zeros(samples, top_paths, steps, dtype=torch.int32),
    )
