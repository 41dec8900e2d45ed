"""Which rule costs which aten op."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ipu_model.cost import vertices
from ipu_model.cost.exchange import exchange
from ipu_model.cost.work import Cycles, Work
from ipu_model.lower import (
    contractions,
    ctc,
    estimates,
    host_calls,
    images,
    indexing,
    moves,
    points,
    pointwise,
    recurrent,
    reductions,
)
from ipu_model.lower.view import OpView, Result, Rule, result


@lru_cache(maxsize=1)
def all_rules() -> Mapping[str, Rule]:
    """Return the rule of every aten op that has a formula, by `Op.kind`."""
    found: dict[str, Rule] = {}
    for family in (
        contractions,
        pointwise,
        reductions,
        images,
        indexing,
        moves,
        ctc,
        points,
        host_calls,
        estimates,
        recurrent,
    ):
        found |= family.rules()
    return found


def fallback(op: OpView) -> Result:
    """Cost an op without a formula: all inputs come from other tiles and pass through plain code."""
    outputs = [output for output in op.outputs if output is not None]
    inputs = list(op.operands())
    received = sum(op.spread(o.tensor) * o.element.bytes for o in inputs)
    n = max([op.spread(output) for output in outputs] + [op.spread(o.tensor) for o in inputs], default=0.0)
    if not outputs:
        return Result((), (None,))
    compute = vertices.elementwise(op.device, n, op.element, ("plain",), vertices.BINARY)
    work = Work("fallback", Cycles(compute=compute) + exchange(op.device, received), temporary_bytes=received)
    return result(op, work)
