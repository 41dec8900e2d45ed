"""What fp16 operands ask for before an op computes: numbers on the grid, one common type, no bitwise ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.errors import Error
from ipu_model.graph import TensorSpec
from ipu_model.numerics.exact import COMPARING, PROMOTING, SELECTING
from ipu_model.numerics.rounding import round_to_half_

Node = torch.fx.Node
aten = torch.ops.aten

# Types all of whose values are float16 values.
ON_GRID = frozenset({torch.float16, torch.uint8, torch.int8, torch.bool})

_BITWISE = frozenset({aten.view.dtype, aten.nextafter.default, aten.nextafter_.default})
_CONTRACTIONS = frozenset({
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.mv.default,
    aten.dot.default,
    aten.addmv.default, aten.convolution.default, aten.native_layer_norm.default,
    aten.native_group_norm.default,
})  # fmt: skip


def dtype_of(value: Any) -> torch.dtype | None:
    """Return the device's element type of a node with one tensor as its result, else `None`."""
    spec = value.meta.get("spec") if isinstance(value, Node) else None
    return spec.dtype if isinstance(spec, TensorSpec) else None


def is_half(value: Any) -> bool:
    """Whether `value` is a node whose result is an fp16 tensor on the device."""
    return dtype_of(value) is torch.float16


def refuse_what_has_no_container(node: Node) -> None:
    """Refuse ops that would compute something else on fp16 values held in fp32 tensors.

    Raises:
        Error: names the op and its module.
    """
    operands = {dtype_of(argument) for argument in node.all_input_nodes}
    where = f"{node.target} in module '{node.meta.get('scope') or 'model'}'"
    if node.target in _BITWISE and (is_half(node) or torch.float16 in operands):
        raise Error(
            f"{where} works on the bits of float16 values, which the IPU Model keeps in float32 tensors. "
            "Convert with .to(dtype) or .float() instead."
        )
    if node.target in _CONTRACTIONS and {torch.float16, torch.float32} <= operands:
        raise Error(
            f"{where} got float16 and float32 operands. Cast one side in forward, e.g. "
            "weight.to(input.dtype). Layers of torch.nn follow the type of their input by themselves."
        )


def put_numbers_on_grid(node: Node) -> None:
    """Round the Python numbers that `node` compares fp16 values with, or writes among them, to fp16."""
    chooses = node.target in SELECTING and is_half(node)
    compares = node.target in COMPARING and is_half(node.args[0])
    if not (chooses or compares):
        return
    overload: Any = node.target
    args, kwargs = list(node.args), dict(node.kwargs)
    for position, argument in enumerate(overload._schema.arguments):
        if "number" not in str(argument.type).lower():
            continue
        if argument.name in kwargs:
            kwargs[argument.name] = _on_grid(kwargs[argument.name])
        elif position < len(args):
            args[position] = _on_grid(args[position])
    node.args, node.kwargs = tuple(args), kwargs


def _on_grid(number: Any) -> Any:
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return number
    rounded = float(round_to_half_(torch.tensor(float(number), dtype=torch.float32)))
    return number if rounded == number else rounded


def cast_operands(graph: torch.fx.Graph, node: Node) -> None:
    """Convert operands of another type to fp16 where type promotion says so: integers, 0-dim fp32."""
    if node.target not in PROMOTING:
        return
    first = 1 if node.target is aten.where.self else 0
    operands = node.args[first : first + 2]
    if not all(isinstance(operand, Node) for operand in operands) or _promoted(operands) is not torch.float16:
        return
    converted = list(node.args)
    for position, operand in enumerate(operands, start=first):
        if dtype_of(operand) not in ON_GRID:
            converted[position] = _converted(graph, node, operand)
    node.args = tuple(converted)


def _promoted(operands: Any) -> torch.dtype:
    a, b = (_stand_in(operand.meta["spec"]) for operand in operands)
    return torch.result_type(a, b)


def _stand_in(spec: TensorSpec) -> Tensor:
    return torch.empty([1] * len(spec.shape), dtype=spec.dtype, device="meta")


def _converted(graph: torch.fx.Graph, user: Node, operand: Any) -> Node:
    with graph.inserting_before(user):
        node = graph.call_function(as_half, (operand,))
    node.meta = {k: v for k, v in user.meta.items() if k != "hints"}
    spec = operand.meta["spec"]
    node.meta["spec"] = TensorSpec(spec.shape, torch.float16, spec.stride)
    return node


def as_half(x: Tensor) -> Tensor:
    """Return `x` (any shape and type) as a container of the nearest fp16 values; overflow gives infinity."""
    return round_to_half_(x.to(torch.float32, copy=True))


def keep_below_one(node: Node) -> None:
    """Draw uniform fp16 numbers as such: fp32 ones would now and then be rounded up to the excluded end."""
    replacement = _UNIFORM.get(node.target)
    if replacement is not None and is_half(node):
        node.target = replacement


def uniform(size: Any, **like: Any) -> Tensor:
    """Return fp16 numbers from [0, 1), a container of shape `size`."""
    return torch.rand(size, dtype=torch.float16).float()


def uniform_like(x: Tensor, **like: Any) -> Tensor:
    """Return fp16 numbers from [0, 1), a container of the shape of `x`."""
    return torch.rand_like(x, dtype=torch.float16).float()


def uniform_(x: Tensor, low: float = 0, high: float = 1, *, generator: torch.Generator | None = None) -> Tensor:
    """Fill the container `x` with fp16 numbers from [low, high)."""
    return x.copy_(torch.empty_like(x, dtype=torch.float16).uniform_(low, high, generator=generator))


_UNIFORM: dict[object, Callable[..., Tensor]] = {
    aten.rand.default: uniform,
    aten.rand_like.default: uniform_like,
    aten.uniform_.default: uniform_,
}
