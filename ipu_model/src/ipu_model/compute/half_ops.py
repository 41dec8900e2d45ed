"""What half precision asks of each op: no rounding, no clipping, or a NaN where it divides by zero.

*Derived*: Graphcore documents that a switch of the floating-point unit, off by default, selects NaN instead of clipping
when half precision overflows, and one of its tests expects 8/0 to be NaN in fp16 with all such switches off. So results
beyond +-65504 are clipped, arithmetic never produces infinity, and what IEEE 754 calls a division by zero (a finite
operand at a pole: 1/0, log(0), 0^-1) gives NaN. We apply the same two rules to the other poles and to an infinite
float32 that is cast, which no source describes.

An infinity that the program itself writes (a mask, an input) remains one: ops that only move or select values keep it.
A test checks every entry of the tables on float16 values of every kind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.graph import spec_of

Node = torch.fx.Node
aten = torch.ops.aten


def overloads(names: str) -> frozenset[object]:
    """Return the aten ops of these names: `relu` is `aten.relu.default`, `median.dim` is `aten.median.dim`."""
    return frozenset(reduce(getattr, f"{name}.default".split(".")[:2], aten) for name in names.split())


# Types all of whose values are float16 values.
ON_GRID = frozenset({torch.float16, torch.uint8, torch.int8, torch.bool})

# They allocate storage whose contents do not matter yet.
UNINITIALISED = overloads("empty.memory_format empty_like empty_strided new_empty new_empty_strided empty_permuted")

# Their results are float16 values whenever their float16 arguments are: they select, move, negate or compare values, or
# make zeros, ones and storage to be filled.
EXACT = UNINITIALISED | overloads(
    """
    relu relu_ max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d
    amax amin max min max.dim min.dim maximum minimum neg neg_ abs abs_ sign sgn sort sort.stable topk median.dim
    kthvalue cummax cummin index.Tensor _unsafe_index.Tensor index_select gather embedding index_copy scatter.src
    scatter_.src cat stack clone _unsafe_view _reshape_copy flip roll repeat tril triu im2col pixel_shuffle
    pixel_unshuffle select_backward slice_backward diagonal_backward slice_scatter select_scatter diagonal_scatter
    unsafe_split.Tensor unsafe_split_with_sizes reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
    replication_pad2d replication_pad3d upsample_nearest1d upsample_nearest2d upsample_nearest3d round floor ceil trunc
    zeros zeros_like ones ones_like zero_ new_zeros new_ones bernoulli bernoulli.p bernoulli_.float bernoulli_.Tensor
    """
)

# They choose between tensors and Python numbers: exact once the numbers are float16 values themselves.
SELECTING = overloads(
    """
    clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_ hardtanh hardtanh_ hardtanh_backward threshold threshold_
    threshold_backward hardshrink where.self where.ScalarOther where.ScalarSelf masked_fill.Scalar masked_fill_.Scalar
    masked_fill.Tensor masked_fill_.Tensor fill.Scalar fill_.Scalar full full_like new_full scalar_tensor
    constant_pad_nd scatter.value scatter_.value index_fill.int_Scalar index_fill_.int_Scalar
    """
)

# Their results are truth values, for which a number is compared as the float16 value nearest to it.
COMPARING = overloads("eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar")

# Both operands take the common type of type promotion before anything is computed.
PROMOTING = overloads(
    """
    add.Tensor add_.Tensor sub.Tensor sub_.Tensor mul.Tensor mul_.Tensor div.Tensor div_.Tensor pow.Tensor_Tensor
    maximum minimum fmod.Tensor remainder.Tensor atan2 eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
    where.self
    """
)

# They convert: exact if the source type has no values outside the float16 grid.
CONVERTING = overloads("_to_copy copy_ copy")

# Integer operands of these are values, not indices or masks.
WITH_VALUES = overloads("cat stack where.self masked_fill.Tensor masked_fill_.Tensor")

# Results of forward ops that only their backward op reads: they stay in fp32, as fp32 arithmetic made them.
SAVED: dict[object, tuple[int, ...]] = {
    **dict.fromkeys(overloads("native_batch_norm native_layer_norm native_group_norm"), (1, 2)),
    **dict.fromkeys(overloads("_fused_rms_norm nll_loss_forward nll_loss2d_forward"), (1,)),
}
READERS_OF_SAVED = overloads(
    """
    native_batch_norm_backward native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward
    nll_loss_backward nll_loss2d_backward
    """
)

# Ops whose results are in the range if their operands are: squashing functions, functions that never exceed their
# argument, means, interpolations, and the derivatives of some of them.
BOUNDED = overloads(
    """
    sigmoid sigmoid_ tanh tanh_ _softmax _safe_softmax erf erfc sin cos atan sqrt sqrt_ rsqrt log log2 log10 log1p
    gelu gelu_ silu silu_ mish hardswish hardswish_ hardsigmoid
    mean mean.dim _adaptive_avg_pool2d _adaptive_avg_pool3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d
    sigmoid_backward tanh_backward _softmax_backward_data
    """
)

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


# Functions of an op's arguments that return a mask of where it divides by zero.


def zero_divisor(x: Any, divisor: Any, *rest: Any, **settings: Any) -> Any:
    return divisor == 0


def zero_divisor_of_a_term(x: Tensor, numerator: Tensor, divisor: Tensor, **settings: Any) -> Tensor:
    return divisor == 0


def zero(x: Tensor) -> Tensor:
    return x == 0


def minus_one(x: Tensor) -> Tensor:
    return x == -1


def one_or_minus_one(x: Tensor) -> Tensor:
    return x.abs() == 1


def zero_to_a_negative_power(x: Any, exponent: Any) -> Any:
    return torch.logical_and(torch.as_tensor(x) == 0, torch.as_tensor(exponent) < 0)


_POLES: dict[object, Callable[..., Any]] = {
    **dict.fromkeys(_QUOTIENTS | overloads("div.Tensor_mode div_.Tensor_mode"), zero_divisor),
    **dict.fromkeys(overloads("addcdiv addcdiv_"), zero_divisor_of_a_term),
    **dict.fromkeys(overloads("reciprocal reciprocal_ rsqrt rsqrt_ log log_ log2 log2_ log10 log10_"), zero),
    **dict.fromkeys(overloads("log1p log1p_"), minus_one),
    **dict.fromkeys(overloads("atanh atanh_"), one_or_minus_one),
    **dict.fromkeys(
        overloads("pow.Tensor_Scalar pow_.Scalar pow.Tensor_Tensor pow_.Tensor pow.Scalar"), zero_to_a_negative_power
    ),
}


def poles_of(graph: torch.fx.Graph, node: Node) -> Node | None:
    """Insert before an op a node that finds its divisions by zero and return it; `None` if it has none."""
    function = _POLES.get(node.target)
    if function is None:
        return None
    if function in (zero_divisor, zero_to_a_negative_power):
        base, number = node.args[:2]
        if isinstance(number, (int, float)) and (number != 0 if function is zero_divisor else number >= 0):
            return None
        if function is zero_to_a_negative_power and isinstance(base, (int, float)) and base != 0:
            return None
    with graph.inserting_before(node):
        return graph.call_function(function, node.args, node.kwargs)


def make_nan_(result: Tensor, where: Any) -> Tensor:
    """Write NaN to `result` (any shape) where the mask (broadcast, or one truth value) is true."""
    mask = torch.as_tensor(where)
    return result.masked_fill_(mask, torch.nan) if bool(mask.any()) else result
