"""Mixed precision in `forward`: weights follow the activation, and autocast does not exist.

The casts are made before autograd sees the call,
so gradients flow back through them: a float32 weight of a layer
with float16 input gets a float32 gradient (executor reference, section 12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ipu_model.errors import Error

# All floating operands of these take the element type of the activation: products, convolutions,
# normalisation.
FOLLOW_ACTIVATION: frozenset[Callable[..., Any]] = frozenset({
    F.linear, F.bilinear, torch.matmul, torch.mm, torch.bmm, torch.mv, torch.dot, torch.inner, torch.addmm,
    torch.addmv, torch.baddbmm, torch.addbmm, torch.einsum, torch.tensordot, Tensor.matmul, Tensor.__matmul__,
    Tensor.__rmatmul__, Tensor.mm, Tensor.bmm, Tensor.mv, Tensor.dot, Tensor.inner, Tensor.addmm,
    Tensor.addmv,
    Tensor.baddbmm, Tensor.addbmm, F.scaled_dot_product_attention, F.multi_head_attention_forward,
    F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, torch.conv1d,
    torch.conv2d, torch.conv3d, torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d,
    F.batch_norm, F.layer_norm, F.group_norm, F.instance_norm, F.rms_norm, torch.batch_norm, torch.layer_norm,
    torch.group_norm, torch.instance_norm, torch.rms_norm, torch.lstm_cell, torch.gru_cell,
    torch.rnn_tanh_cell,
    torch.rnn_relu_cell,
})  # fmt: skip

# Where the activation is not the first argument: a bias that is added, or the equation, comes before it.
_ACTIVATION = {
    torch.addmm: 1, torch.addmv: 1, torch.baddbmm: 1, torch.addbmm: 1, Tensor.addmm: 1, Tensor.addmv: 1,
    Tensor.baddbmm: 1, Tensor.addbmm: 1, torch.einsum: 1,
}  # fmt: skip
_ACTIVATION_NAMES = ("input", "mat1", "mat", "batch1", "query", "input1", "a")

# Positions of running statistics, which keep the element type of their buffers.
_STATISTICS = {
    F.batch_norm: (1, 2), F.instance_norm: (1, 2), torch.batch_norm: (3, 4), torch.instance_norm: (3, 4),
}  # fmt: skip
_STATISTICS_NAMES = ("running_mean", "running_var")
_FLOATS = (torch.float16, torch.float32)


def follow_activation(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Cast the floating operands of `func`, one of `FOLLOW_ACTIVATION`, to the type of its activation."""
    leading = _activation(func, args, kwargs)
    if leading is None or leading.dtype not in _FLOATS:
        return args, kwargs
    dtype = leading.dtype

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.dtype in _FLOATS and tensor.dtype != dtype else tensor

    keep = _STATISTICS.get(func, ())
    new_args = tuple(a if i in keep else tree_map_only(Tensor, cast, a) for i, a in enumerate(args))
    new_kwargs = {k: v if k in _STATISTICS_NAMES else tree_map_only(Tensor, cast, v) for k, v in kwargs.items()}
    return new_args, new_kwargs


def _activation(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    position = _ACTIVATION.get(func, 0)
    named = [kwargs[name] for name in _ACTIVATION_NAMES if name in kwargs]
    candidates = tree_leaves([*args[position:], *named]) if len(args) > position else tree_leaves(named)
    return next((c for c in candidates if isinstance(c, Tensor)), None)


def refuse_autocast(scope: str) -> None:
    """Refuse `torch.autocast`, in `forward` or around the call that compiles.

    Raises:
        Error: names the module that runs under autocast.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise Error(
            f"torch.autocast is not supported by PopTorch (active in module '{scope or 'model'}'). Cast the "
            "model with model.half(), or single tensors in forward with .half() and .float(): layers follow "
            "the element type of their input."
        )
