"""What half precision asks of each op: no rounding, no clipping, or a NaN where it divides by zero.

*Derived*: Graphcore documents that a switch of the floating-point unit, off by default, selects NaN instead of clipping
when half precision overflows, and one of its tests expects 8/0 to be NaN in fp16 with all such switches off. So results
beyond +-65504 are clipped, arithmetic never produces infinity, and what IEEE 754 calls a division by zero (a finite
operand at a pole: 1/0, log(0), 0^-1) gives NaN. We apply the same two rules to the other poles and to an infinite
float32 that is cast, which no source describes.

An infinity that the program itself writes (a mask, an input) remains one: ops that only move or select values keep it.
"""

from __future__ import annotations

import operator
from functools import reduce
from importlib.resources import files
from typing import Any

import msgspec
import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.graph import spec_of

Node = torch.fx.Node
aten = torch.ops.aten

_OPS: dict[str, str] = msgspec.toml.decode((files("ipu_model") / "data" / "half_ops.toml").read_bytes())


def overloads(names: str) -> frozenset[object]:
    """Return the aten ops of these names: `relu` is `aten.relu.default`, `median.dim` is `aten.median.dim`."""
    return frozenset(reduce(getattr, f"{name}.default".split(".")[:2], aten) for name in names.split())


# Types all of whose values are float16 values.
ON_GRID = frozenset({torch.float16, torch.uint8, torch.int8, torch.bool})

UNINITIALISED = overloads(_OPS["uninitialised"])
EXACT = UNINITIALISED | overloads(_OPS["exact"])
SELECTING, COMPARING, CONVERTING = (overloads(_OPS[name]) for name in ("selecting", "comparing", "converting"))
PROMOTING, WITH_VALUES, BOUNDED = (overloads(_OPS[name]) for name in ("promoting", "with_values", "bounded"))

# Results of forward ops that only their backward op reads: they stay in fp32, as fp32 arithmetic made them.
SAVED: dict[object, tuple[int, ...]] = {
    **dict.fromkeys(overloads("native_batch_norm native_layer_norm native_group_norm"), (1, 2)),
    **dict.fromkeys(overloads("_fused_rms_norm nll_loss_forward nll_loss2d_forward"), (1,)),
}
READERS_OF_SAVED = overloads(_OPS["readers_of_saved"])

# Products with a number of at most 1, quotients by a number of at least 1, and sums with a number so small that
# rounding removes it at 65504.
_PRODUCTS = overloads("mul.Tensor mul_.Tensor mul.Scalar mul_.Scalar")
_QUOTIENTS = overloads("div.Tensor div_.Tensor div.Scalar div_.Scalar")
_SUMS = overloads("add.Tensor add_.Tensor add.Scalar add_.Scalar sub.Tensor sub_.Tensor sub.Scalar sub_.Scalar")
_LOST_AT_THE_END = 16.0
# Ops whose results are 0 or 1; dropout divides these by a number below 1.
_SMALLEST_SHARE = 2.0**-15
_MASKS = overloads("bernoulli_.float bernoulli.p")


def may_leave_range(node: Node) -> bool:
    """Whether the float16 result of an op may lie beyond +-65504 for operands within."""
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


# Ops that divide by zero where one of their arguments has a certain value: its position, and the value.
_POLES: dict[object, tuple[int, int]] = {
    **dict.fromkeys(_QUOTIENTS | overloads("div.Tensor_mode div_.Tensor_mode"), (1, 0)),
    **dict.fromkeys(overloads("addcdiv addcdiv_"), (2, 0)),
    **dict.fromkeys(overloads("reciprocal reciprocal_ rsqrt rsqrt_ log log_ log2 log2_ log10 log10_"), (0, 0)),
    **dict.fromkeys(overloads("log1p log1p_"), (0, -1)),
}
_ATANH = overloads("atanh atanh_")
_POWERS = overloads("pow.Tensor_Scalar pow_.Scalar pow.Tensor_Tensor pow_.Tensor pow.Scalar")


def zero_to_a_negative_power(x: Any, exponent: Any) -> Any:
    return torch.logical_and(torch.as_tensor(x) == 0, torch.as_tensor(exponent) < 0)


def poles_of(graph: torch.fx.Graph, node: Node) -> Node | bool | None:
    """Insert before an op a node that finds its divisions by zero and return it; `None` if it has none."""
    with graph.inserting_before(node):
        if node.target in _POLES:
            position, value = _POLES[node.target]
            operand = node.args[position]
            if isinstance(operand, (int, float)):
                return True if operand == value else None
            return graph.call_function(operator.eq, (operand, value))
        if node.target in _POWERS:
            base, exponent = node.args[:2]
            if (isinstance(exponent, (int, float)) and exponent >= 0) or (isinstance(base, (int, float)) and base != 0):
                return None
            return graph.call_function(zero_to_a_negative_power, (base, exponent))
        if node.target in _ATANH:
            return graph.call_function(operator.eq, (graph.call_function(torch.abs, node.args), 1))
    return None


def make_nan_(result: Tensor, where: Any) -> Tensor:
    mask = torch.as_tensor(where)
    return result.masked_fill_(mask, torch.nan) if bool(mask.any()) else result
