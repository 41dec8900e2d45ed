"""Rules for operators on sets of points, each of which is one op (`ipu_model.capture.device_ops.points`)."""

from __future__ import annotations

import math

from ipu_model.cost import points
from ipu_model.cost.points import Neighbours, Sampling
from ipu_model.lower.view import OpView, Result, Rule, result


def rules() -> dict[str, Rule]:
    """Return the rules of farthest point sampling and of nearest neighbours."""
    return {"farthest_points": lower_farthest, "nearest_points": lower_nearest}


def lower_farthest(op: OpView) -> Result:
    """Cost picking points one after another."""
    source, counts = op.needed(0), op.argument(2)
    rows, *features = source.shape
    problem = Sampling(rows, math.prod(features), len(counts), max(counts))
    return result(op, points.farthest(op.device, problem, source.element))


def lower_nearest(op: OpView) -> Result:
    """Cost comparing every row with every other."""
    x, y = op.needed(0), op.needed(1)
    problem = Neighbours(x.shape[0], y.shape[0], x.shape[1])
    return result(op, points.nearest(op.device, problem, x.element))
