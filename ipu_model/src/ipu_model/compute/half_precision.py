"""Half precision as a graph pass: fp16 values live in fp32 tensors (containers), on the fp16 grid.

Every op computes in fp32 and its result is rounded once, as on the device, and clipped (`half_ops.py`); this is many
times faster on a CPU than arithmetic on fp16 tensors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.graph import (
    Marks,
    TensorSpec,
    aliased_argument,
    info_of,
    is_half,
    is_view,
    op_of,
    set_info,
    spec_of,
    written_arguments,
)
from ipu_model.compute import half_ops
from ipu_model.compute.half_ops import ON_GRID, make_nan_, may_leave_range, overloads, poles_of
from ipu_model.compute.rounding import Overflow, clip_, clip_to_half_, nearest, round_to_half_
from ipu_model.errors import Error

Node = torch.fx.Node
aten = torch.ops.aten

_BITWISE = overloads("view.dtype nextafter nextafter_")
_CONTRACTIONS = overloads("mm bmm addmm baddbmm mv dot addmv convolution native_layer_norm native_group_norm")

# Up to this size, rounding spends more time on allocating its temporary tensor than on computing.
_SMALL = 1 << 14


def to_containers(graph: torch.fx.Graph, overflow: Overflow, *, clips_apart: bool = False) -> None:
    """Rewrite `graph` in place: fp16 becomes fp32, with one rounding after every op that is not exact.

    With `clips_apart`, clipping is an op after the rounding, so that a check can be inserted between the two.
    """
    roundings = _Roundings(graph, overflow, clips_apart)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        refuse_what_has_no_container(node)
        put_numbers_on_grid(node, overflow)
        cast_operands(node, roundings)
        rounds = _needs_rounding(node)
        node.args, node.kwargs = _widened(node.args), _widened(node.kwargs)
        if node.target in _UNIFORM and is_half(node):
            # Drawn in fp16 directly: rounding fp32 numbers would sometimes reach the excluded upper bound.
            node.target = _UNIFORM[node.target]
        if rounds:
            roundings.insert_after(node, node)
        for argument in written_arguments(node):
            if is_half(argument) and aliased_argument(node) is not argument:
                roundings.insert_after(node, argument)


def refuse_what_has_no_container(node: Node) -> None:
    operands = {_dtype_of(argument) for argument in node.all_input_nodes}
    where = f"{node.target} in module '{info_of(node).scope or 'model'}'"
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


def put_numbers_on_grid(node: Node, overflow: Overflow) -> None:
    """Round the Python numbers that `node` compares fp16 values with, or writes among them, to fp16."""
    chooses = node.target in half_ops.SELECTING and is_half(node)
    compares = node.target in half_ops.COMPARING and is_half(node.args[0])
    if not (chooses or compares):
        return
    overload: Any = node.target
    args, kwargs = list(node.args), dict(node.kwargs)
    for position, argument in enumerate(overload._schema.arguments):
        if "number" not in str(argument.type).lower():
            continue
        if argument.name in kwargs:
            kwargs[argument.name] = _on_grid(kwargs[argument.name], overflow)
        elif position < len(args):
            args[position] = _on_grid(args[position], overflow)
    node.args, node.kwargs = tuple(args), kwargs


def _on_grid(number: Any, overflow: Overflow) -> Any:
    if isinstance(number, bool) or not isinstance(number, (int, float)) or math.isinf(number):
        return number  # An infinity that the program writes is a bit pattern of float16.
    rounded = float(nearest(overflow)(torch.tensor(float(number), dtype=torch.float32)))
    return number if rounded == number else rounded


# Numbers from [0, 1), or from [low, high), of float16 in containers.


def uniform(size: Any, **like: Any) -> Tensor:
    return torch.rand(size, dtype=torch.float16).float()


def uniform_like(x: Tensor, **like: Any) -> Tensor:
    return torch.rand_like(x, dtype=torch.float16).float()


def uniform_(x: Tensor, low: float = 0, high: float = 1, *, generator: torch.Generator | None = None) -> Tensor:
    return x.copy_(torch.empty_like(x, dtype=torch.float16).uniform_(low, high, generator=generator))


_UNIFORM: dict[object, Callable[..., Tensor]] = {
    aten.rand.default: uniform,
    aten.rand_like.default: uniform_like,
    aten.uniform_.default: uniform_,
}


class _Roundings:
    """Inserts roundings; small results of one shape go through one scratch tensor of the replay."""

    def __init__(self, graph: torch.fx.Graph, overflow: Overflow, clips_apart: bool) -> None:
        self._graph, self._clips, self._apart = graph, overflow is Overflow.CLIP, clips_apart
        self._scratches: dict[tuple[int, ...], Node] = {}

    def insert_after(self, node: Node, value: Node) -> None:
        spec = spec_of(value)
        assert spec is not None
        scratch = [self._scratch(spec.shape)] if math.prod(spec.shape) <= _SMALL else []
        clips = self._clips and (value is not node or may_leave_range(node))
        poles = poles_of(self._graph, node) if self._clips and value is node else None
        steps: list[tuple[Callable[..., Tensor], tuple[Any, ...]]] = []
        if self._apart:
            steps.append((round_to_half_, (value, *scratch)))
        if poles is not None:
            steps.append((make_nan_, (value, poles)))
        if not self._apart:
            steps.append((clip_to_half_ if clips else round_to_half_, (value, *scratch)))
        elif clips:
            steps.append((clip_, (value,)))
        info = replace(info_of(node), spec=spec, marks=Marks())
        for function, arguments in steps:
            with self._graph.inserting_after(node):
                node = self._graph.call_function(function, arguments)
            set_info(node, info)

    def _scratch(self, shape: tuple[int, ...]) -> Node:
        if shape not in self._scratches:
            first = next(node for node in self._graph.nodes if node.op not in ("placeholder", "get_attr"))
            with self._graph.inserting_before(first):
                scratch = self._graph.call_function(torch.empty, (list(shape),), {"dtype": torch.float16})
            self._scratches[shape] = scratch
        return self._scratches[shape]


def cast_operands(node: Node, roundings: _Roundings) -> None:
    """Convert operands of another type to fp16 where type promotion says so: integers, 0-dim fp32."""
    if node.target not in half_ops.PROMOTING:
        return
    first = 1 if node.target is aten.where.self else 0
    operands = node.args[first : first + 2]
    if not all(isinstance(operand, Node) for operand in operands):
        return
    specs = [spec for spec in map(spec_of, operands) if spec is not None]
    a, b = (torch.empty([1] * len(spec.shape), dtype=spec.dtype, device="meta") for spec in specs)
    if torch.result_type(a, b) is not torch.float16:
        return
    converted = list(node.args)
    for position, operand in enumerate(operands, start=first):
        spec = spec_of(operand)
        if spec is not None and spec.dtype not in ON_GRID:
            with node.graph.inserting_before(node):
                cast = node.graph.call_function(in_container, (operand,))
            half = TensorSpec(spec.shape, torch.float16, spec.stride)
            set_info(cast, replace(info_of(node), spec=half, marks=Marks()))
            roundings.insert_after(cast, cast)
            converted[position] = cast
    node.args = tuple(converted)


def in_container(x: Tensor) -> Tensor:
    return x.to(torch.float32, copy=True)


def _widened(arguments: Any) -> Any:
    return torch.fx.node.map_aggregate(arguments, lambda a: torch.float32 if a is torch.float16 else a)


def _needs_rounding(node: Node) -> bool:
    if not is_half(node) or is_view(node):
        return False
    if node.target is not operator.getitem:
        return not _is_exact(node)
    # Results that forward keeps for its own backward op, and for nothing else, stay as they are.
    op = op_of(node)
    is_saved = node.args[1] in half_ops.SAVED.get(op.target, ()) and all(
        user.target in half_ops.READERS_OF_SAVED for user in node.users
    )
    return not is_saved and not _is_exact(op)


def _is_exact(node: Node) -> bool:
    if node.target in half_ops.UNINITIALISED:
        return True
    if node.target in half_ops.CONVERTING:
        # `copy_(target, source)`, but `_to_copy(source)`.
        source = node.args[0] if node.target is aten._to_copy.default else node.args[1]
        return _dtype_of(source) in ON_GRID
    if node.target not in half_ops.EXACT and node.target not in half_ops.SELECTING:
        return False
    operands = [dtype for dtype in map(_dtype_of, node.all_input_nodes) if dtype is not None]
    values = [dtype for dtype in operands if dtype.is_floating_point or node.target in half_ops.WITH_VALUES]
    return ON_GRID.issuperset(values)


def _dtype_of(value: Any) -> torch.dtype | None:
    spec = spec_of(value)
    return None if spec is None else spec.dtype
