"""How PopTorch treats calls of torch functions inside `forward`, before autograd sees them.

Losses mark themselves, weights follow the element type of the activation, indices are widened to what torch wants, and
moves between host and device are followed. Gradients flow back through the casts that are inserted here: a float32
weight of a layer with float16 input gets a float32 gradient (executor reference, section 12).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ipu_model.capture import tracing
from ipu_model.capture.device_versions import DEVICE_VERSIONS
from ipu_model.capture.losses import LOSS_FUNCTIONS
from ipu_model.capture.origins import Origins
from ipu_model.capture.torch_private import FakeTensor
from ipu_model.capture.tracing import Trace
from ipu_model.errors import Error

_HERE = torch.device("cpu")
_GPUS = frozenset({"cuda", "hip", "mps", "xpu"})
_MAKERS = (torch.tensor, torch.as_tensor)


def follow_moves(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], origins: Origins
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the pseudo device "ipu" replaced, noting tensors that move to the device.

    Raises:
        Error: a tensor of the device is sent to the CPU, or forward asks for a GPU.
    """
    _refuse_gpus(func, args, kwargs)
    if _is_ipu(kwargs.get("device")):
        kwargs = {**kwargs, "device": _HERE}
    if func in _MAKERS and args and isinstance(args[0], Tensor) and not isinstance(args[0], FakeTensor):
        origins.adopt(args[0])
    if func is Tensor.cpu:
        _check_stays(args[0], ".cpu()")
    if func is Tensor.to:
        target = args[1] if len(args) > 1 else kwargs.get("device", kwargs.get("other"))
        if isinstance(target, str) and target.split(":")[0] == "cpu":
            _check_stays(args[0], f'.to("{target}")')
        elif isinstance(target, (str, torch.device, FakeTensor)) and not isinstance(args[0], FakeTensor):
            origins.adopt(args[0])
        if _is_ipu(target) and len(args) > 1:
            args = (args[0], _HERE, *args[2:])
    return args, kwargs


def _is_ipu(device: object) -> bool:
    if isinstance(device, torch.device):
        return device.type == "ipu"
    return isinstance(device, str) and device.split(":")[0] == "ipu"


def _refuse_gpus(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse tensors on other accelerators, as programs written for GPUs make them in forward.

    Without this, fake tensors would be there although this machine has no such device.
    """
    target = args[1] if func is Tensor.to and len(args) > 1 else kwargs.get("device")
    if func is Tensor.cuda or type(target) is int:  # an int counts GPUs
        target = "cuda"
    kind = target.split(":")[0] if isinstance(target, str) else target.type if isinstance(target, torch.device) else ""
    if kind in _GPUS:
        raise Error(
            f"forward asks for a tensor on the device '{kind}', but this model runs on the IPU. Leave out .cuda() and "
            f".to('{kind}'), and make new tensors with device=x.device, where x is an input or a weight."
        )


def _check_stays(tensor: Tensor, how: str) -> None:
    if isinstance(tensor, FakeTensor):
        raise Error(
            f"Illegal move to CPU (via `{how}`) when using the dispatcher. Instead, return this output as an IPU "
            "tensor: the model returns it on the CPU. Use poptorch.isRunningOnIpu() to skip such code on the IPU."
        )


_NARROW = (torch.int32, torch.int16, torch.int8, torch.uint8)

# Functions that want 64-bit indices -> where these are among the positional arguments, and their name.
_INDEX_OF: Mapping[Callable[..., Any], tuple[int, str]] = {
    **dict.fromkeys((F.cross_entropy, F.nll_loss, F.multi_margin_loss, F.multilabel_margin_loss), (1, "target")),
    F.one_hot: (0, "tensor"),
    **dict.fromkeys((torch.take_along_dim, Tensor.take_along_dim), (1, "indices")),
    **dict.fromkeys((torch.take, Tensor.take, torch.put, Tensor.put, Tensor.put_), (1, "index")),
    **dict.fromkeys((
        torch.gather, Tensor.gather, torch.scatter, Tensor.scatter, Tensor.scatter_, torch.scatter_add,
        Tensor.scatter_add, Tensor.scatter_add_, torch.index_copy, Tensor.index_copy, Tensor.index_copy_,
        torch.index_fill, Tensor.index_fill, Tensor.index_fill_,
    ), (2, "index")),
}  # fmt: skip


def widen_index(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `func` with its index in 64 bits, if it has one; no other argument changes.

    What a function in place writes to must stay the same tensor.
    """
    if func not in _INDEX_OF:
        return args, kwargs
    position, name = _INDEX_OF[func]
    if len(args) > position:
        return (*args[:position], _wide(args[position]), *args[position + 1 :]), kwargs
    return args, {**kwargs, name: _wide(kwargs[name])} if name in kwargs else kwargs


def _wide(index: Any) -> Any:
    return index.long() if isinstance(index, Tensor) and index.dtype in _NARROW else index


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


_DENSE_VERSIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.sparse.mm: torch.matmul, torch.smm: torch.matmul, torch.hspmm: torch.matmul, torch.sparse.addmm: torch.addmm,
}  # fmt: skip


def with_dense_constants(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], origins: Origins
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return a call of dense tensors if `func` takes a sparse constant together with tensors of the device."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    sparse = [tensor for tensor in tensors if tensor.layout is not torch.strided]
    if not sparse or not any(isinstance(tensor, FakeTensor) for tensor in tensors):
        return func, args, kwargs

    def dense(tensor: Tensor) -> Tensor:
        return tensor.to_dense() if tensor.layout is not torch.strided and origins.is_held(tensor) else tensor

    args, kwargs = tree_map_only(Tensor, dense, (args, kwargs))
    return _DENSE_VERSIONS.get(func, func), args, kwargs


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


_FACTORIES: frozenset[Callable[..., Any]] = frozenset({
    torch.zeros, torch.ones, torch.rand, torch.randn, torch.arange, torch.full, torch.tensor, torch.empty,
    torch.randint, torch.randperm, torch.linspace, torch.eye,
})  # fmt: skip

_PRINTERS = frozenset({Tensor.__repr__, Tensor.__format__})

_logger = logging.getLogger("poptorch::python")


class DeviceFunctions(TorchFunctionMode):
    """Applies PopTorch's rules to torch functions called while a model is traced."""

    def __init__(self, trace: Trace, origins: Origins) -> None:
        super().__init__()
        self.trace = trace
        self.origins = origins
        self._warned: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if tracing.current() is not self.trace:
            return func(*args, **(kwargs or {}))  # the host computes something while the trace waits
        if func in _PRINTERS and isinstance(args[0], FakeTensor):
            return _printed(args[0])
        refuse_autocast(self.trace.scopes[-1])
        args, kwargs = follow_moves(func, args, dict(kwargs or {}), self.origins)
        if func in FOLLOW_ACTIVATION:
            args, kwargs = follow_activation(func, args, kwargs)
        args, kwargs = widen_index(func, args, kwargs)
        if self.origins.holds_sparse:
            func, args, kwargs = with_dense_constants(func, args, kwargs, self.origins)
        if func in _FACTORIES and kwargs.get("device") is None:
            self._warn_forced(func.__name__)
        if func in LOSS_FUNCTIONS:
            _refuse_class_weights(func, args, kwargs)
        self.trace.torch_functions_entered += 1
        try:
            result = DEVICE_VERSIONS.get(func, func)(*args, **kwargs)
        finally:
            self.trace.torch_functions_entered -= 1
        if func in LOSS_FUNCTIONS and isinstance(result, Tensor):
            self.trace.mark_loss(result)
        return result

    def _warn_forced(self, name: str) -> None:
        """Say once in a trace and for each function that a new tensor lands on the device."""
        if name not in self._warned:
            self._warned.add(name)
            _logger.warning("No device set in torch.%s(): forcing to IPU", name)


def _printed(tensor: Tensor) -> str:
    """Return the text of a tensor of the device, which has no values while forward is traced."""
    usual = tensor.dtype in (torch.get_default_dtype(), torch.int64, torch.bool)
    dtype = "" if usual else f", dtype={tensor.dtype}"
    return f"tensor(<unavailable>, size={tuple(tensor.shape)}, device='ipu:0'{dtype})"


def _refuse_class_weights(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if func in (F.cross_entropy, F.nll_loss):
        weight = kwargs.get("weight", args[2] if len(args) > 2 else None)
        if weight is not None:
            raise Error(
                f"{func.__name__}: class weights are not supported by PopTorch. Use reduction='none' and multiply "
                "the losses of the samples by weight[target], then poptorch.identity_loss(..., reduction='mean')."
            )
