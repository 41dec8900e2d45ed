"""Steps written by hand, without torch: tensors, ops with one result, and what one op takes."""

from __future__ import annotations

import math

from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import CostSettings, Work
from ipu_model.step import FLOAT16, Argument, DType, Op, Phase, Ref, Source, Step, Tensor, Variable, step_of_ops


def tensor(
    name: str, *shape: int, dtype: DType = FLOAT16, producer: str | None = None, of_weight: bool = False
) -> Tensor:
    stride = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return Tensor(name, shape, dtype, stride, name, producer, of_weight=of_weight)


def op(kind: str, shape: tuple[int, ...], *reads: str, name: str = "", dtype: DType = FLOAT16, **more: object) -> Op:
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


def named(name: str, kind: str, shape: tuple[int, ...], *reads: str, scope: str = "fc", backward: bool = True) -> Op:
    phase = Phase.BACKWARD if backward else Phase.FORWARD
    return op(kind, shape, *reads, name=name, scope=scope, phase=phase)


def linear() -> Step:
    """Return a linear layer with its loss, and its backward pass: gradients of data, weight and bias."""
    ops = [
        named("out", "addmm", (64, 32), "bias", "x", "w", backward=False),
        named("loss", "sum", (), "out", scope="", backward=False),
        named("g_out", "expand", (64, 32), "loss", scope=""),
        named("g_x", "mm", (64, 128), "g_out", "w"),
        named("g_w", "mm", (128, 32), "x_t", "g_out"),
        named("g_b", "sum", (32,), "g_out"),
        named("g_r", "threshold_backward", (64, 128), "g_x", "x", scope="act"),
    ]
    entering = [
        (tensor("x", 64, 128), Source.INPUT),
        (tensor("x_t", 128, 64), Source.INPUT),
        (tensor("w", 128, 32, of_weight=True), Source.VARIABLE),
        (tensor("bias", 32, of_weight=True), Source.VARIABLE),
    ]
    variables = (Variable("fc.weight", ("fc.weight",), "w", True), Variable("fc.bias", ("fc.bias",), "bias", True))
    return step_of_ops(
        ops, entering, variables=variables, gradients={"fc.weight": "g_w", "fc.bias": "g_b"}, loss="loss",
        layers={"fc": "Linear", "act": "ReLU"},
    )  # fmt: skip
