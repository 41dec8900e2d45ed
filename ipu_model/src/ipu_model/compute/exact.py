"""Which ops need no rounding: their results are float16 values whenever their float16 arguments are.

This file holds only tables. `half_precision.py` uses them, and a test checks every entry on float16 values of every
kind.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

# Types all of whose values are float16 values.
ON_GRID = frozenset({torch.float16, torch.uint8, torch.int8, torch.bool})

# They select, move, negate or compare values, or make zeros, ones and storage to be filled.
EXACT: frozenset[object] = frozenset({
    aten.relu.default, aten.relu_.default, aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default, aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default, aten.amax.default, aten.amin.default, aten.max.default,
    aten.min.default,
    aten.max.dim, aten.min.dim, aten.maximum.default, aten.minimum.default, aten.neg.default,
    aten.neg_.default,
    aten.abs.default, aten.abs_.default, aten.sign.default, aten.sgn.default, aten.sort.default,
    aten.sort.stable,
    aten.topk.default, aten.median.dim, aten.kthvalue.default, aten.cummax.default, aten.cummin.default,
    aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_select.default, aten.gather.default,
    aten.embedding.default, aten.index_copy.default, aten.scatter.src, aten.scatter_.src, aten.cat.default,
    aten.stack.default, aten.clone.default, aten._unsafe_view.default, aten._reshape_copy.default,
    aten.flip.default,
    aten.roll.default, aten.repeat.default, aten.tril.default, aten.triu.default, aten.im2col.default,
    aten.pixel_shuffle.default, aten.pixel_unshuffle.default, aten.select_backward.default,
    aten.slice_backward.default, aten.diagonal_backward.default, aten.slice_scatter.default,
    aten.select_scatter.default, aten.diagonal_scatter.default, aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default, aten.reflection_pad1d.default, aten.reflection_pad2d.default,
    aten.reflection_pad3d.default, aten.replication_pad1d.default, aten.replication_pad2d.default,
    aten.replication_pad3d.default, aten.upsample_nearest1d.default, aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default, aten.round.default, aten.floor.default, aten.ceil.default,
    aten.trunc.default,
    aten.zeros.default, aten.zeros_like.default, aten.ones.default, aten.ones_like.default,
    aten.zero_.default,
    aten.new_zeros.default, aten.new_ones.default, aten.bernoulli.default, aten.bernoulli.p,
    aten.bernoulli_.float, aten.bernoulli_.Tensor,
    *(empties := (
        aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
        aten.new_empty_strided.default, aten.empty_permuted.default,
    )),
})  # fmt: skip

# They allocate storage whose contents do not matter yet.
UNINITIALISED: frozenset[object] = frozenset(empties)

# They choose between tensors and Python numbers: exact once the numbers are float16 values themselves.
SELECTING: frozenset[object] = frozenset({
    aten.clamp.default, aten.clamp_.default, aten.clamp_min.default, aten.clamp_min_.default,
    aten.clamp_max.default, aten.clamp_max_.default, aten.hardtanh.default, aten.hardtanh_.default,
    aten.hardtanh_backward.default, aten.threshold.default, aten.threshold_.default,
    aten.threshold_backward.default, aten.hardshrink.default, aten.where.self,
    aten.where.ScalarOther, aten.where.ScalarSelf, aten.masked_fill.Scalar,
    aten.masked_fill_.Scalar, aten.masked_fill.Tensor, aten.masked_fill_.Tensor, aten.fill.Scalar,
    aten.fill_.Scalar,
    aten.full.default, aten.full_like.default, aten.new_full.default, aten.scalar_tensor.default,
    aten.constant_pad_nd.default, aten.scatter.value, aten.scatter_.value, aten.index_fill.int_Scalar,
    aten.index_fill_.int_Scalar,
})  # fmt: skip

# Their results are truth values, for which a number is compared as the float16 value nearest to it.
COMPARING: frozenset[object] = frozenset({
    aten.eq.Scalar, aten.ne.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar,
})  # fmt: skip

# Both operands take the common type of type promotion before anything is computed.
PROMOTING: frozenset[object] = frozenset({
    aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor, aten.mul.Tensor, aten.mul_.Tensor,
    aten.div.Tensor, aten.div_.Tensor, aten.pow.Tensor_Tensor, aten.maximum.default, aten.minimum.default,
    aten.fmod.Tensor, aten.remainder.Tensor, aten.atan2.default, aten.eq.Tensor, aten.ne.Tensor,
    aten.lt.Tensor,
    aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor, aten.where.self,
})  # fmt: skip

# They convert: exact if the source type has no values outside the float16 grid.
CONVERTING: frozenset[object] = frozenset({aten._to_copy.default, aten.copy_.default, aten.copy.default})

# Results of forward ops that only their backward op reads: they stay in fp32, as fp32 arithmetic made them.
SAVED: dict[object, tuple[int, ...]] = {
    aten.native_batch_norm.default: (1, 2),
    aten.native_layer_norm.default: (1, 2),
    aten.native_group_norm.default: (1, 2),
    aten._fused_rms_norm.default: (1,),
    aten.nll_loss_forward.default: (1,),
    aten.nll_loss2d_forward.default: (1,),
}
_SAVED_FOR = ("native_batch_norm_backward", "native_layer_norm_backward", "native_group_norm_backward")
READERS_OF_SAVED: frozenset[object] = frozenset({
    *(getattr(aten, name).default for name in _SAVED_FOR), aten._fused_rms_norm_backward.default,
    aten.nll_loss_backward.default, aten.nll_loss2d_backward.default,
})  # fmt: skip
