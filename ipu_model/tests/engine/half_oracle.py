"""The half-precision oracle: a graph computed op by op in float64, every float16 result rounded once.

It shares no arithmetic with `ipu_model.compute`: ops run in float64,
rounding is numpy's float64 -> float16, clipped (torch's
`double.to(half)` rounds twice, through float32; capture-and-replay-notes.md, section 6),
and ops that only compare
run on real float16 tensors, where PyTorch converts Python numbers to float16 first.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.fx
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from ipu_model.capture.device_ops import recurrent_layers
from ipu_model.capture.graph import Graph, TensorSpec, info_of
from ipu_model.compute.half_ops import make_nan_
from ipu_model.compute.replay import Arithmetic, Replay, build
from ipu_model.compute.rounding import clip_, clip_to_half_, round_to_half_

aten = torch.ops.aten
Node = torch.fx.Node

# What forward keeps for its own backward op in float32: means, inverse deviations, the divisor of a mean.
SAVED = {
    aten.native_batch_norm.default: (1, 2), aten.native_layer_norm.default: (1, 2),
    aten.native_group_norm.default: (1, 2), aten.nll_loss_forward.default: (1,),
    aten.nll_loss2d_forward.default: (1,),
}  # fmt: skip
BATCH_NORM = aten.native_batch_norm.default
EMPTY = (aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default,
         aten.new_empty.default,
         aten.new_empty_strided.default)  # fmt: skip
# Loops over steps: what a step stores is rounded, by numpy from float64. That the formulas are those of the layers is
# tested against PyTorch's own.
RECURRENT = {
    op: partial(compute, kind)
    for name, kind in recurrent_layers.KINDS.items()
    for op, compute in (
        (recurrent_layers.LAYER_OPS[name].forward, recurrent_layers.forward),
        (recurrent_layers.LAYER_OPS[name].backward, recurrent_layers.backward),
    )
}
# They move what their operands hold, an infinity that the program wrote too; everything else clips it.
MOVING = frozenset({
    aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.masked_fill.Scalar, aten.masked_fill.Tensor,
    aten.full.default, aten.full_like.default, aten.scalar_tensor.default, aten.cat.default, aten.clone.default,
})  # fmt: skip
# In float64 their results are infinite only where they divide by zero, which gives NaN.
DIVIDING = frozenset({
    aten.div.Tensor, aten.div.Scalar, aten.reciprocal.default, aten.rsqrt.default, aten.log.default,
})  # fmt: skip
PROMOTING = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})
COMPARING = frozenset({
    getattr(getattr(aten, name), overload)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for overload in ("Scalar", "Tensor")
})  # fmt: skip


# What a replay inserts after ops of half precision.
TIDYING = frozenset({round_to_half_, clip_to_half_, clip_, make_nan_})


def rounded(x: Tensor) -> Tensor:
    """Clip float64 `x` to +-65504 and round it to the float16 grid, once, ties to even; the result is float64."""
    with np.errstate(invalid="ignore"):
        clipped = np.clip(x.detach().numpy(), -65504.0, 65504.0)
    return torch.from_numpy(np.asarray(clipped.astype(np.float16), dtype=np.float64))


def on_grid(x: Tensor) -> bool:
    """Whether every value of `x` (any floating type) is a float16 number, an infinity or NaN."""
    # A conversion there and back, however it rounds, changes exactly the values that are off the grid.
    return bool(((x == x.half()) | x.isnan()).all())


def ulps(actual: Tensor, expected: Tensor) -> Tensor:
    """Count the float16 numbers between two tensors' values, both on the grid; only NaN is near NaN."""
    distance = (_ordered(actual) - _ordered(expected)).abs()
    distance[actual.isnan() & expected.isnan()] = 0
    distance[actual.isnan() ^ expected.isnan()] = 1 << 20
    return distance


def _ordered(x: Tensor) -> Tensor:
    """Map float16 values to integers in their order, neighbours one apart, both zeros to 0."""
    bits = x.detach().contiguous().half().view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


@dataclass
class Shares:
    """How far results are from the oracle's: elements in all, equal, and at most one number apart."""

    elements: int = 0
    equal: int = 0
    close: int = 0

    def add(self, distance: Tensor) -> None:
        self.elements += distance.numel()
        self.equal += int((distance == 0).sum())
        self.close += int((distance <= 1).sum())

    @property
    def share_equal(self) -> float:
        return self.equal / max(self.elements, 1)

    @property
    def share_close(self) -> float:
        return self.close / max(self.elements, 1)


@dataclass
class Truth:
    """What the oracle computes; `arguments` are the variables and inputs as they are afterwards.

    `roundings` counts, by node name,
    how many times at most a value on the way to a result was changed by rounding:
    a result with one rounding is the exact result rounded once, whatever ops it took.
    """

    outputs: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    arguments: list[Tensor] = field(default_factory=list)
    shares: dict[str, Shares] = field(default_factory=dict)
    roundings: dict[str, int] = field(default_factory=dict)


@torch.no_grad()
def interpret(graph: Graph, arguments: Sequence[Tensor], observed: Mapping[str, Tensor] | None = None) -> Truth:
    """Compute `graph` for given variables, inputs and loss seed.

    With `observed`, the results of a replay by node name,
    every op computes from the replay's operands instead of the
    oracle's own, and `shares` says for each kind of op how its results compare: errors do not add up.
    """
    truth = Truth()
    values = iter([_widened(a).clone() for a in arguments])
    env: dict[Node, Any] = {}
    for node in graph.ops.nodes:
        if node.op == "placeholder":
            env[node] = next(values)
            truth.arguments.append(env[node])
        elif node.op == "get_attr":
            env[node] = _widened(graph.constants[str(node.target)]).clone()
        elif node.op == "call_function":
            env[node], changed = _run(node, env)
            before = [truth.roundings.get(argument.name, 0) for argument in node.all_input_nodes]
            truth.roundings[node.name] = max(before, default=0) + changed
            if observed is not None and isinstance(env[node], Tensor) and node.name in observed:
                _compare(node, env[node], observed[node.name], truth)
        else:
            outputs, gradients = torch.fx.node.map_arg(node.args[0], lambda n: env[n])
            truth.outputs, truth.gradients = list(outputs), list(gradients)
    return truth


def _compare(node: Node, result: Tensor, seen: Tensor, truth: Truth) -> None:
    """Note how far the replay's result is from the oracle's, and go on with the replay's."""
    random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    if is_half(node) and not random and not _is_unrounded(node):
        kind = node.args[0].target if node.target is operator.getitem else node.target
        truth.shares.setdefault(str(kind), Shares()).add(ulps(seen, result))
    if not torch.equal(result, seen.to(result.dtype)):
        result.copy_(seen)


def _run(node: Node, env: dict[Node, Any]) -> tuple[Any, int]:
    """Return the result of `node`, and how many roundings at most changed it: none, one or several."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: env[n])
    if node.target in COMPARING and is_half(node.args[0]):
        return node.target(*tree_map_only(Tensor, _narrowed, args)), False
    if node.target in RECURRENT and info_of(node).spec[0].dtype is torch.float16:
        return RECURRENT[node.target](*args, stored=rounded), 2
    result = node.target(*_in_float64(_promoted(node, args)), **_in_float64(kwargs))
    if is_half(node) and node.target in DIVIDING:
        result.masked_fill_(result.isinf(), torch.nan)
    changed = is_half(node) and not _is_unrounded(node) and not _moves(node) and _round_in_place(result)
    if node.target is BATCH_NORM:
        for position in (3, 4):
            if is_half(node.args[position]):
                _round_in_place(args[position])
    return result, changed


def is_half(value: Any) -> bool:
    spec = info_of(value).spec if isinstance(value, Node) else None
    return isinstance(spec, TensorSpec) and spec.dtype is torch.float16


def _moves(node: Node) -> bool:
    return node.target in MOVING or getattr(node.target, "is_view", False)


def _is_unrounded(node: Node) -> bool:
    if node.target in EMPTY:
        return True
    return node.target is operator.getitem and node.args[1] in SAVED.get(node.args[0].target, ())


def _promoted(node: Node, args: Any) -> Any:
    """Integer operands of float16 arithmetic become float16 numbers first, as type promotion says."""
    if node.target not in PROMOTING or not is_half(node):
        return args

    def convert(value: Any) -> Any:
        integers = isinstance(value, Tensor) and value.dtype in (torch.int16, torch.int32, torch.int64)
        return rounded(value.double()) if integers else value

    return tuple(convert(value) for value in args)


def _round_in_place(result: Tensor) -> bool:
    grid = rounded(result)
    if torch.equal(grid, result):
        return False
    result.copy_(grid)
    return True


def _narrowed(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy().astype(np.float16)) if x.dtype is torch.float64 else x


def _widened(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _in_float64(arguments: Any) -> Any:
    """Ask for float64 wherever the recorded op was asked for a narrower floating type."""
    narrow = (torch.float16, torch.float32)
    return tree_map(lambda a: torch.float64 if isinstance(a, torch.dtype) and a in narrow else a, arguments)


@dataclass(frozen=True)
class Replayed:
    """What a replay returned, the arguments as they are afterwards, and every result by node name."""

    outputs: list[Tensor]
    gradients: list[Tensor]
    arguments: list[Tensor]
    seen: dict[str, Tensor]


def replay(graph: Graph, arguments: Sequence[Tensor], arithmetic: Arithmetic | None = None) -> Replayed:
    """Replay one micro-batch of `graph`, looking at every result and at every operand that an op reads.

    Raises:
        AssertionError: an op of the rewritten graph reads a float16 operand with a value off the grid.
    """
    containers = [(a.float() if a.is_floating_point() else a).clone() for a in arguments]
    watch = Watch(build(graph, arithmetic or Arithmetic()))
    with torch.no_grad():
        outputs, gradients = watch.run(*containers)
    return Replayed(list(outputs), list(gradients), containers, watch.seen)


class Watch(torch.fx.Interpreter):
    """Runs a replay node by node, keeps copies of results and checks operands."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay.module)
        self.seen: dict[str, Tensor] = {}

    def run_node(self, n: Node) -> Any:
        if n.target not in TIDYING:
            for operand in n.all_input_nodes:
                assert self._may_be_read(operand), f"{operand} is off the float16 grid when {n} reads it"
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.seen[n.args[0].name if n.target in TIDYING else n.name] = result.clone()
        return result

    def _may_be_read(self, operand: Node) -> bool:
        return not is_half(operand) or _is_unrounded(operand) or on_grid(self.env[operand])
