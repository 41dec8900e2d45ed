"""Half precision as a graph pass: fp16 values live in fp32 tensors (containers), on the fp16 grid.

Every op computes in fp32 and its result is rounded once, as on the device; this is many times faster on a CPU than
arithmetic on fp16 tensors. Results beyond +-65504 clip, arithmetic never produces infinity, and what IEEE 754 calls a
division by zero (a finite operand at a pole: 1/0, log(0), 0^-1) gives NaN. *Derived*: Graphcore documents that a switch
of the floating-point unit, off by default, selects NaN instead of clipping, and one of its tests expects 8/0 to be NaN
in fp16 with all such switches off. We apply the same rules to the other poles and to an infinite float32 that is cast,
which no source describes. An infinity that the program itself writes (a mask, an input) remains one: ops that only move
or select values keep it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from importlib.resources import files
from typing import Any

import msgspec
import torch
import torch.fx
from torch import Tensor

from ipu_model.capture import graph as graphs
from ipu_model.capture.graph import TensorSpec, info_of, is_half, is_view, set_info, spec_of, written_arguments
from ipu_model.compute.rounding import Overflow, clip_to_half_, nearest, round_to_half_
from ipu_model.errors import Error

Node = torch.fx.Node
aten = torch.ops.aten


class _Table(msgspec.Struct):
    poles: list[tuple[str, int, int, str]]
    ops: dict[str, str]


_TABLE = msgspec.toml.decode((files("ipu_model") / "data" / "half_ops.toml").read_bytes(), type=_Table)
_OPS = _TABLE.ops


def overloads(names: str) -> frozenset[object]:
    """Return the aten ops of these names: `relu` is `aten.relu.default`, `median.dim` is `aten.median.dim`."""
    return frozenset(reduce(getattr, f"{name}.default".split(".")[:2], aten) for name in names.split())


_BITWISE, _CONTRACTIONS = overloads(_OPS["bitwise"]), overloads(_OPS["contractions"])

# Up to this size, rounding spends more time on allocating its temporary tensor than on computing.
_SMALL = 1 << 14


def to_containers(graph: torch.fx.Graph, overflow: Overflow) -> None:
    """Rewrite fp16 to fp32 with a rounding after each op that is not exact, which also clips where it must."""
    roundings = _Roundings(graph, overflow)
    for node in list(graph.nodes):
        if node.op != "call_function":
            roundings.infinite.add(node)
            continue
        refuse_what_has_no_container(node)
        put_numbers_on_grid(node, overflow)
        cast_operands(node, roundings)
        rounds = _needs_rounding(node)
        if not rounds:
            roundings.keep_infinities(node)
        node.args, node.kwargs = _widened(node.args), _widened(node.kwargs)
        if node.target in UNIFORM and is_half(node):
            # Drawn in fp16 directly: rounding fp32 numbers would sometimes reach the excluded upper bound.
            node.target = UNIFORM[node.target]
        if rounds:
            roundings.insert_after(node, node)
        for argument in written_arguments(node):
            if is_half(argument) and graphs.aliased_argument(node) is not argument:
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


def uniform(size: Any, *, generator: torch.Generator | None = None, **like: Any) -> Tensor:
    return torch.rand(size, dtype=torch.float16, generator=generator).float()


def uniform_like(x: Tensor, *, generator: torch.Generator | None = None, **like: Any) -> Tensor:
    return torch.empty_like(x, dtype=torch.float16).uniform_(generator=generator).float()


def uniform_(x: Tensor, low: float = 0, high: float = 1, *, generator: torch.Generator | None = None) -> Tensor:
    return x.copy_(torch.empty_like(x, dtype=torch.float16).uniform_(low, high, generator=generator))


UNIFORM: dict[object, Callable[..., Tensor]] = {
    aten.rand.default: uniform,
    aten.rand_like.default: uniform_like,
    aten.uniform_.default: uniform_,
}


class _Roundings:
    """Inserts roundings; small results of one shape go through one scratch tensor of the replay."""

    def __init__(self, graph: torch.fx.Graph, overflow: Overflow) -> None:
        self._graph, self._clips = graph, overflow is Overflow.CLIP
        self._scratches: dict[tuple[int, ...], Node] = {}
        # What may hold infinities that the program wrote: inputs, constants, what selects and moves values of these.
        self.infinite: set[Node] = set()

    def keep_infinities(self, node: Node) -> None:
        written = any(isinstance(value, float) and math.isinf(value) for value in (*node.args, *node.kwargs.values()))
        if written or not self.infinite.isdisjoint(node.all_input_nodes):
            self.infinite.update([node, *written_arguments(node)])

    def insert_after(self, node: Node, value: Node) -> None:
        spec = spec_of(value)
        assert spec is not None
        scratch = [self._scratch(spec.shape)] if math.prod(spec.shape) <= _SMALL else []
        chosen = node.target not in SQUASHING and not self.infinite.isdisjoint(node.all_input_nodes)
        clips = self._clips and (value is not node or chosen or may_leave_range(node))
        poles = poles_of(self._graph, node) if self._clips and value is node else None
        info = replace(info_of(node), spec=spec, marks=graphs.Marks())
        with self._graph.inserting_after(node):
            rounding = self._graph.call_function(clip_to_half_ if clips else round_to_half_, (value, *scratch))
            set_info(rounding, info)
        if poles is not None:
            with self._graph.inserting_before(rounding):
                set_info(self._graph.call_function(make_nan_, (value, poles)), info)

    def _scratch(self, shape: tuple[int, ...]) -> Node:
        if shape not in self._scratches:
            first = next(node for node in self._graph.nodes if node.op not in ("placeholder", "get_attr"))
            with self._graph.inserting_before(first):
                scratch = self._graph.call_function(torch.empty, (list(shape),), {"dtype": torch.float16})
            self._scratches[shape] = scratch
        return self._scratches[shape]


def cast_operands(node: Node, roundings: _Roundings) -> None:
    """Convert operands of another type to fp16 where type promotion says so: integers, 0-dim fp32."""
    if node.target not in PROMOTING:
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
                cast = node.graph.call_function(aten._to_copy.default, (operand,), {"dtype": torch.float32})
            half = TensorSpec(spec.shape, torch.float16, spec.stride)
            set_info(cast, replace(info_of(node), spec=half, marks=graphs.Marks()))
            roundings.insert_after(cast, cast)
            converted[position] = cast
    node.args = tuple(converted)


def _widened(arguments: Any) -> Any:
    return torch.fx.node.map_aggregate(arguments, lambda a: torch.float32 if a is torch.float16 else a)


def _needs_rounding(node: Node) -> bool:
    if not is_half(node) or is_view(node):
        return False
    if node.target is not operator.getitem:
        return not _is_exact(node)
    # Results that forward keeps for its own backward op, and for nothing else, stay as they are.
    op = graphs.op_of(node)
    is_saved = node.args[1] in SAVED.get(op.target, ()) and all(user.target in READERS_OF_SAVED for user in node.users)
    return not is_saved and not _is_exact(op)


def _is_exact(node: Node) -> bool:
    if node.target in UNINITIALISED:
        return True
    if node.target in CONVERTING:
        # `copy_(target, source)`, but `_to_copy(source)`.
        source = node.args[0] if node.target is aten._to_copy.default else node.args[1]
        return _dtype_of(source) in ON_GRID
    if node.target not in EXACT and node.target not in SELECTING:
        return False
    operands = [dtype for dtype in map(_dtype_of, node.all_input_nodes) if dtype is not None]
    values = [dtype for dtype in operands if dtype.is_floating_point or node.target in WITH_VALUES]
    return ON_GRID.issuperset(values)


def _dtype_of(value: Any) -> torch.dtype | None:
    spec = spec_of(value)
    return None if spec is None else spec.dtype


# --- what half precision asks of each op: no rounding, no clipping, or a NaN where it divides by zero

# Types all of whose values are float16 values.
ON_GRID = frozenset({torch.float16, torch.uint8, torch.int8, torch.bool})

UNINITIALISED = overloads(_OPS["uninitialised"])
EXACT = UNINITIALISED | overloads(_OPS["exact"])
SELECTING, COMPARING, CONVERTING = (overloads(_OPS[name]) for name in ("selecting", "comparing", "converting"))
PROMOTING, WITH_VALUES, SQUASHING = (overloads(_OPS[name]) for name in ("promoting", "with_values", "squashing"))
BOUNDED = SQUASHING | overloads(_OPS["bounded"])

# Results of forward ops that only their backward op reads: they stay in fp32, as fp32 arithmetic made them.
SAVED: dict[object, tuple[int, ...]] = {
    **dict.fromkeys(overloads("native_batch_norm native_layer_norm native_group_norm"), (1, 2)),
    **dict.fromkeys(overloads("_fused_rms_norm nll_loss_forward nll_loss2d_forward"), (1,)),
}
READERS_OF_SAVED = overloads(_OPS["readers_of_saved"])

# Products with a number of at most 1, quotients by a number of at least 1, and sums with a number so small that
# rounding removes it at 65504.
_PRODUCTS, _QUOTIENTS, _SUMS, _MASKS = (overloads(_OPS[name]) for name in ("products", "quotients", "sums", "masks"))
_LOST_AT_THE_END = 16.0
# Dropout divides masks by a number below 1.
_SMALLEST_SHARE = 2.0**-15


def may_leave_range(node: Node) -> bool:
    """Whether the float16 result of an op may lie beyond +-65504, for operands within."""
    specs = [spec_of(operand) for operand in node.all_input_nodes]
    if not all(spec is not None and spec.dtype in ON_GRID for spec in specs):
        return True
    if node.target in BOUNDED:
        return False
    if len(node.args) != 2 or node.kwargs or not isinstance(node.args[1], (int, float)):
        return True
    size = abs(node.args[1])
    if node.target in _PRODUCTS:
        is_bounded = size <= 1
    elif node.target in _QUOTIENTS:
        # The mask was created just before, so nothing can have changed it.
        divides_mask = node.prev is node.args[0] and node.prev.target in _MASKS
        is_bounded = size >= 1 or (size > _SMALLEST_SHARE and divides_mask)
    else:
        is_bounded = node.target in _SUMS and size < _LOST_AT_THE_END
    return not is_bounded


# Where ops divide by zero: the place in words, the first argument that tells, and the next one that does not.
_POLES = {op: (where, first, end) for where, first, end, names in _TABLE.poles for op in overloads(names)}


# Whether elements of operands, which are tensors or numbers, are at the poles of functions.
_AT_POLE: dict[str, Callable[..., Any]] = {
    "at zero": lambda x: x == 0,
    "at minus one": lambda x: x == -1,
    "at ones": lambda x: (x == 1) | (x == -1),
    # Of the range from 0 to 1, from which a number keeps them away.
    "at both ends": lambda x, y=None, *, eps=None: (x == 0) | (x == 1) if y is None and eps is None else False,
    "below zero": lambda x: x < 0,
    "at whole numbers": lambda x: (x <= 0) & (x % 1 == 0),
    "at half numbers": lambda x, y: reduce(operator.or_, (is_pole("at whole numbers", x - i / 2) for i in range(y))),
    "of zeta": lambda x, y: (x == 1) | ((x > 1) & is_pole("at whole numbers", y)),
    "of powers": lambda x, y: (x == 0) & (y < 0),
    "of x log y": lambda x, y: (y == 0) & (x != 0),
    "of x log1p y": lambda x, y: (y == -1) & (x != 0),
}


def is_pole(where: str, *operands: Any, **settings: Any) -> Any:
    return _AT_POLE[where](*operands, **settings)


def poles_of(graph: torch.fx.Graph, node: Node) -> Node | bool | None:
    """Insert before an op a node that finds its divisions by zero and return it; `None` if it has none."""
    if node.target not in _POLES:
        return None
    where, first, end = _POLES[node.target]
    operands = node.args[first:end]
    if where == "of powers":
        base, exponent = (o if isinstance(o, (int, float)) else least for o, least in zip(operands, (0, -1)))
        if not is_pole(where, base, exponent):
            return None
    if all(isinstance(operand, (int, float)) for operand in operands):
        return True if is_pole(where, *operands) else None
    with graph.inserting_before(node):
        return graph.call_function(is_pole, (where, *operands), {k: v for k, v in node.kwargs.items() if k == "eps"})


def make_nan_(result: Tensor, where: Any) -> Tensor:
    mask = torch.as_tensor(where)
    return result.masked_fill_(mask, torch.nan) if bool(mask.any()) else result
