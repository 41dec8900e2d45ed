"""Which results in half precision may lie beyond its range, and where a division by zero makes NaN.

*Derived*: Graphcore documents that a switch of the floating-point unit, off by default, selects NaN instead of clipping
when half precision overflows, and one of its tests expects 8/0 to be NaN in fp16 with all such switches off. So results
beyond +-65504 are clipped, arithmetic never produces infinity, and what IEEE 754 calls a division by zero (a finite
operand at a pole: 1/0, log(0), 0^-1) gives NaN. We apply the same two rules to the other poles and to an infinite
float32 that is cast, which no source describes.

An infinity that the program itself writes (a mask, an input) remains one: ops that only move or select values keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.graph import TensorSpec
from ipu_model.compute.exact import ON_GRID

Node = torch.fx.Node
aten = torch.ops.aten

# Ops whose results are in the range if their operands are: squashing functions, functions that never exceed their
# argument, means, interpolations, and the derivatives of some of them.
BOUNDED: frozenset[object] = frozenset({
    aten.sigmoid.default, aten.sigmoid_.default, aten.tanh.default, aten.tanh_.default, aten._softmax.default,
    aten._safe_softmax.default, aten.erf.default, aten.erfc.default, aten.sin.default, aten.cos.default,
    aten.atan.default, aten.sqrt.default, aten.sqrt_.default, aten.rsqrt.default, aten.log.default, aten.log2.default,
    aten.log10.default, aten.log1p.default,
    aten.gelu.default, aten.gelu_.default, aten.silu.default, aten.silu_.default, aten.mish.default,
    aten.hardswish.default, aten.hardswish_.default, aten.hardsigmoid.default,
    aten.mean.default, aten.mean.dim, aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default,
    aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default,
    aten.sigmoid_backward.default, aten.tanh_backward.default, aten._softmax_backward_data.default,
})  # fmt: skip

# Products with a number of at most 1, quotients by a number of at least 1, and sums with a number so small that
# rounding removes it at 65504.
_PRODUCTS = frozenset({aten.mul.Tensor, aten.mul_.Tensor, aten.mul.Scalar, aten.mul_.Scalar})
_QUOTIENTS = frozenset({aten.div.Tensor, aten.div_.Tensor, aten.div.Scalar, aten.div_.Scalar})
_SUMS = frozenset({
    aten.add.Tensor, aten.add_.Tensor, aten.add.Scalar, aten.add_.Scalar, aten.sub.Tensor, aten.sub_.Tensor,
    aten.sub.Scalar, aten.sub_.Scalar,
})  # fmt: skip
_LOST_AT_THE_END = 16.0
# Ops whose results are 0 or 1; dropout divides these by a number below 1.
_SMALLEST_SHARE = 2.0**-15
_MASKS = frozenset({aten.bernoulli_.float, aten.bernoulli.p})


def may_leave_range(node: Node) -> bool:
    """Whether the float16 result of an op may lie beyond +-65504 for operands within."""
    specs = [operand.meta.get("spec") for operand in node.all_input_nodes]
    if not all(isinstance(spec, TensorSpec) and spec.dtype in ON_GRID for spec in specs):
        return True
    return node.target not in BOUNDED and not _is_bounded_by_its_number(node)


def _is_bounded_by_its_number(node: Node) -> bool:
    if len(node.args) != 2 or node.kwargs or not isinstance(node.args[1], (int, float)):
        return False
    size = abs(node.args[1])
    if node.target in _PRODUCTS:
        return size <= 1
    if node.target in _QUOTIENTS:
        # The mask was created just before, so nothing can have changed it.
        return size >= 1 or (size > _SMALLEST_SHARE and node.prev is node.args[0] and node.prev.target in _MASKS)
    return node.target in _SUMS and size < _LOST_AT_THE_END


def zero_divisor(x: Any, divisor: Any, *rest: Any, **settings: Any) -> Any:
    """Return where a quotient, `x / divisor`, is a division by zero."""
    return divisor == 0


def zero_divisor_of_a_term(x: Tensor, numerator: Tensor, divisor: Tensor, **settings: Any) -> Tensor:
    """Return where a sum, `x + value * numerator / divisor`, divides by zero."""
    return divisor == 0


def zero(x: Tensor) -> Tensor:
    """Return where a logarithm or reciprocal has its pole."""
    return x == 0


def minus_one(x: Tensor) -> Tensor:
    """Return where the logarithm of 1 + x has its pole."""
    return x == -1


def one_or_minus_one(x: Tensor) -> Tensor:
    """Return where the inverse hyperbolic tangent has its poles."""
    return x.abs() == 1


def zero_to_a_negative_power(x: Any, exponent: Any) -> Any:
    """Return where a power is a division by zero."""
    return torch.logical_and(torch.as_tensor(x) == 0, torch.as_tensor(exponent) < 0)


_ZERO = (
    aten.reciprocal.default, aten.reciprocal_.default, aten.rsqrt.default, aten.rsqrt_.default, aten.log.default,
    aten.log_.default, aten.log2.default, aten.log2_.default, aten.log10.default, aten.log10_.default,
)  # fmt: skip
_POWERS = (aten.pow.Tensor_Scalar, aten.pow_.Scalar, aten.pow.Tensor_Tensor, aten.pow_.Tensor, aten.pow.Scalar)

# Where ops divide by zero: functions of their arguments that return a mask.
_POLES: dict[object, Callable[..., Any]] = {
    **dict.fromkeys((*_QUOTIENTS, aten.div.Tensor_mode, aten.div_.Tensor_mode), zero_divisor),
    **dict.fromkeys((aten.addcdiv.default, aten.addcdiv_.default), zero_divisor_of_a_term),
    **dict.fromkeys(_ZERO, zero),
    **dict.fromkeys((aten.log1p.default, aten.log1p_.default), minus_one),
    **dict.fromkeys((aten.atanh.default, aten.atanh_.default), one_or_minus_one),
    **dict.fromkeys(_POWERS, zero_to_a_negative_power),
}


def poles_of(graph: torch.fx.Graph, node: Node) -> Node | None:
    """Insert before an op a node that finds its divisions by zero and return it; `None` if it has none."""
    function = _POLES.get(node.target)
    if function is None or _has_a_harmless_number(node, function):
        return None
    with graph.inserting_before(node):
        return graph.call_function(function, node.args, node.kwargs)


def _has_a_harmless_number(node: Node, function: Callable[..., Any]) -> bool:
    if function not in (zero_divisor, zero_to_a_negative_power):
        return False
    base, number = node.args[:2]
    if function is zero_divisor:
        return isinstance(number, (int, float)) and number != 0
    return (isinstance(number, (int, float)) and number >= 0) or (isinstance(base, (int, float)) and base != 0)


def make_nan_(result: Tensor, where: Any) -> Tensor:
    """Write NaN to `result` (any shape) where the mask (broadcast, or one truth value) is true."""
    mask = torch.as_tensor(where)
    return result.masked_fill_(mask, torch.nan) if bool(mask.any()) else result
