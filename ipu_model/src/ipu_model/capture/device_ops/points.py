"""Farthest point sampling and nearest neighbours as ops; they give 64-bit rows, by Euclidean distances in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

# The host computes distances in pieces of this many: 64 MB.
_DISTANCES_AT_ONCE = 1 << 24


@torch.library.custom_op("ipu_model::farthest_points", mutates_args=())
def farthest_points(points: Tensor, bounds: list[int], counts: list[int], starts: Tensor | None) -> Tensor:
    """Return the rows of `points` `[P, F]` that farthest point sampling picks, sample after sample.

    Sample i is the rows `bounds[i] : bounds[i + 1]`, of which `counts[i]` are picked: first the row `starts[i]` of
    the sample (without `starts` row 0), then always the one farthest from those already picked, the first of equals.
    """
    rows = points.flatten(1).float()
    first = [0] * len(counts) if starts is None else starts.tolist()
    picked = []
    for begin, end, count, start in zip(bounds, bounds[1:], counts, first):
        sample, row = rows[begin:end], int(start)
        distance = torch.full(sample.shape[:1], torch.inf)
        for _ in range(count):
            picked.append(begin + row)
            distance = torch.minimum(distance, (sample - sample[row]).square().sum(1))
            row = int(distance.argmax())
    return torch.tensor(picked, dtype=torch.int64)


@torch.library.custom_op("ipu_model::nearest_points", mutates_args=())
def nearest_points(x: Tensor, y: Tensor, batch_x: Tensor | None, batch_y: Tensor | None) -> Tensor:
    """Return for rows of `x` `[n, F]` the nearest of `y` `[m, F]`, of the same batch element if there are several."""
    others = y.float()
    rows = max(1, _DISTANCES_AT_ONCE // max(1, y.shape[0]))
    batches = [None] * len(x.split(rows)) if batch_x is None else batch_x.split(rows)
    nearest = []
    for part, batch in zip(x.float().split(rows), batches):
        # Products instead of differences, torch's choice for many points, would lose the order of close neighbours.
        distance = torch.cdist(part, others, compute_mode="donot_use_mm_for_euclid_dist")
        if batch is not None and batch_y is not None:
            distance = distance.masked_fill(batch[:, None] != batch_y[None, :], torch.inf)
        nearest.append(distance.argmin(1))
    return torch.cat(nearest)


@farthest_points.register_fake
def _(points: Tensor, bounds: list[int], counts: list[int], starts: Tensor | None) -> Tensor:
    return points.new_empty(sum(counts), dtype=torch.int64)


@nearest_points.register_fake
def _(x: Tensor, y: Tensor, batch_x: Tensor | None, batch_y: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], dtype=torch.int64)
