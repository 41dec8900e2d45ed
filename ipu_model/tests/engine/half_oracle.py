"""The half-precision oracle: a captured graph computed op by op in float64, every float16 result rounded once.

It shares nothing with `ipu_model.numerics`: arithmetic is float64, rounding is numpy's float64 -> float16 (torch's
`double.to(half)` rounds twice, through float32; capture-and-replay-notes.md, section 6), and ops that only compare or
select run on real float16 tensors, where PyTorch converts Python numbers to float16 first.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.fx
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from ipu_model.graph import Graph, TensorSpec

aten = torch.ops.aten
Node = torch.fx.Node

# Mean and inverse deviation that the device hands from forward to backward in float32 (results 1 and 2).
SAVED_STATISTICS = (aten.native_batch_norm.default, aten.native_layer_norm.default, aten.native_group_norm.default)
BATCH_NORM = aten.native_batch_norm.default
UNINITIALISED = (aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default)
# PyTorch converts both operands to float16 before it compares or selects.
NATIVE = frozenset({
    getattr(getattr(aten, name), overload)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for overload in ("Scalar", "Tensor")
})  # fmt: skip


def rounded(x: Tensor) -> Tensor:
    """Round float64 `x` to the float16 grid, once, ties to even; the result is float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(np.asarray(x.detach().numpy().astype(np.float16), dtype=np.float64))


def on_grid(x: Tensor) -> bool:
    """Whether every value of `x` (any floating type) is a float16 number, an infinity or NaN."""
    wide = x.detach().double()
    return torch.equal(wide.nan_to_num(nan=7.0, posinf=8.0, neginf=9.0),
                       rounded(wide).nan_to_num(nan=7.0, posinf=8.0, neginf=9.0))  # fmt: skip


def ulps(actual: Tensor, expected: Tensor) -> Tensor:
    """Return how many float16 numbers lie between two tensors of grid values; NaN is 0 from NaN and far from all."""
    a, b = (_ordered(t) for t in (actual, expected))
    distance = (a - b).abs()
    nan_a, nan_b = actual.isnan(), expected.isnan()
    distance[nan_a & nan_b] = 0
    distance[nan_a ^ nan_b] = 1 << 20
    return distance


def _ordered(x: Tensor) -> Tensor:
    """Map float16 values to integers in their order, neighbours one apart, both zeros to 0."""
    bits = torch.from_numpy(x.detach().double().numpy().astype(np.float16).view(np.int16).astype(np.int64))
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


class HalfOracle:
    """Computes `graph` for given variables, inputs and loss seed; results are float64 tensors."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @torch.no_grad()
    def __call__(self, arguments: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return outputs, gradients, and the arguments as they are afterwards (buffers change in place)."""
        values = iter([_widened(a).clone() for a in arguments])
        env: dict[Node, Any] = {}
        kept: list[Tensor] = []
        for node in self.graph.ops.nodes:
            if node.op == "placeholder":
                env[node] = next(values)
                kept.append(env[node])
            elif node.op == "get_attr":
                env[node] = _widened(self.graph.constants[str(node.target)]).clone()
            elif node.op == "call_function":
                env[node] = self._run(node, env)
            else:
                outputs, gradients = torch.fx.node.map_arg(node.args[0], lambda n: env[n])
        return list(outputs), list(gradients), kept

    def _run(self, node: Node, env: dict[Node, Any]) -> Any:
        specs = node.meta.get("spec")
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: env[n])
        if node.target in NATIVE and _is_half(node.args[0]):
            return node.target(*tree_map_only(Tensor, _narrowed, args))
        args = _promoted(node, args)
        result = node.target(*_in_float64(args), **_in_float64(kwargs))
        if isinstance(specs, TensorSpec) and specs.dtype is torch.float16 and not _is_statistic(node):
            _round_in_place(result)
        if node.target is BATCH_NORM:
            for position in (3, 4):
                if _is_half(node.args[position]):
                    _round_in_place(args[position])
        return result


def _is_half(value: Any) -> bool:
    return isinstance(value, Node) and value.meta["spec"].dtype is torch.float16


def _is_statistic(node: Node) -> bool:
    return node.target is operator.getitem and node.args[0].target in SAVED_STATISTICS and node.args[1] != 0


def _promoted(node: Node, args: Any) -> Any:
    """Integer operands of float16 arithmetic become float16 numbers first, as type promotion says."""
    arithmetic = node.target in PROMOTING and getattr(node.meta["spec"], "dtype", None) is torch.float16
    if not arithmetic:
        return args
    return tuple(
        rounded(value.double()) if isinstance(value, Tensor) and not value.is_floating_point()
        and value.dtype is not torch.bool else value for value in args
    )  # fmt: skip


PROMOTING = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})


def _round_in_place(result: Tensor) -> None:
    grid = rounded(result)
    if not torch.equal(grid, result):
        result.copy_(grid)


def _narrowed(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy().astype(np.float16)) if x.dtype is torch.float64 else x


def _widened(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _in_float64(arguments: Any) -> Any:
    """Ask for float64 wherever the recorded op was asked for a narrower floating type."""
    narrow = (torch.float16, torch.float32)
    return tree_map(lambda a: torch.float64 if isinstance(a, torch.dtype) and a in narrow else a, arguments)
