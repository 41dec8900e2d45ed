"""Steps written by hand, without torch: tensors, ops with one result, and what one op takes."""

from __future__ import annotations

import math

from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import CostSettings, Work
from ipu_model.step import FLOAT16, Argument, DType, Op, Ref, Source, Tensor, step_of_ops


def tensor(
    name: str, *shape: int, dtype: DType = FLOAT16, producer: str | None = None, of_weight: bool = False
) -> Tensor:
    """Return a contiguous tensor with storage of its own."""
    stride = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return Tensor(name, shape, dtype, stride, name, producer, of_weight=of_weight)


def op(kind: str, shape: tuple[int, ...], *reads: str, name: str = "", dtype: DType = FLOAT16, **more: object) -> Op:
    """Return an op with one result that has the op's name."""
    name = name or kind
    result = tensor(name, *shape, dtype=dtype, producer=name)
    more = {"target": kind, "arguments": tuple(map(Ref, reads)), **more}
    return Op(name, kind, (result,), **more)  # type: ignore[arg-type]


def work_of(
    kind: str,
    result: tuple[int, ...],
    *operands: tuple[int, ...] | Tensor,
    arguments: tuple[Argument, ...] = (),
    dtype: DType = FLOAT16,
    settings: CostSettings | None = None,
    **more: object,
) -> Work:
    """Return the work of the only part of an op on tensors, or shapes of fp16 tensors, and on further arguments."""
    tensors = [o if isinstance(o, Tensor) else tensor(f"x{place}", *o) for place, o in enumerate(operands)]
    arguments = (*(Ref(each.name) for each in tensors), *arguments)
    entering = [(each, Source.INPUT) for each in tensors]
    (cost,) = costs_of(
        step_of_ops([op(kind, result, dtype=dtype, arguments=arguments, **more)], entering), settings
    ).ops
    assert not cost.is_fallback
    return cost.work
