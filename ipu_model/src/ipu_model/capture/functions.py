"""How PopTorch treats calls of torch functions inside `forward`, before autograd sees them.

Losses mark themselves, weights follow the element type of the activation, indices are widened to what torch wants, and
moves between host and device are followed. Gradients flow back through the casts that are inserted here: a float32
weight of a layer with float16 input gets a float32 gradient (executor reference, section 12).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ipu_model.capture import tracing
from ipu_model.capture.device_ops.ctc import ctc_loss
from ipu_model.capture.device_ops.recurrent_layers import recurrent_network
from ipu_model.capture.origins import Origins
from ipu_model.capture.torch_private import AdaptiveSoftmaxOutput, FakeTensor
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
    """Refuse `torch.autocast`, in `forward` or around the call that compiles."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise Error(
            f"torch.autocast is not supported by PopTorch (active in module '{scope or 'model'}'). Cast the "
            "model with model.half(), or single tensors in forward with .half() and .float(): layers follow "
            "the element type of their input."
        )


# The losses that PopTorch recognises; huber, Gaussian NLL and the multi-class margin losses are not among them.
LOSS_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset({
    F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.cross_entropy, F.nll_loss, F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits, F.kl_div, F.poisson_nll_loss, F.hinge_embedding_loss,
    F.cosine_embedding_loss, F.soft_margin_loss, F.multilabel_soft_margin_loss, F.margin_ranking_loss,
    F.triplet_margin_loss, F.ctc_loss, torch.ctc_loss,
})  # fmt: skip

_FACTORIES: frozenset[Callable[..., Any]] = frozenset({
    torch.zeros, torch.ones, torch.rand, torch.randn, torch.arange, torch.full, torch.tensor, torch.empty,
    torch.randint, torch.randperm, torch.linspace, torch.eye,
})  # fmt: skip

_PRINTERS = frozenset({Tensor.__repr__, Tensor.__format__})

_logger = logging.getLogger("poptorch::python")


# Functions of torch for which the device runs another version: their own needs values, formats or types it has not.


@contextmanager
def static_adaptive_softmax() -> Iterator[None]:
    """Let `torch.nn.AdaptiveLogSoftmaxWithLoss` compute every cluster for every row while a model is traced.

    Results are the same; the device does the work of `log_prob` for all classes, as shapes must be known.
    """
    module = nn.AdaptiveLogSoftmaxWithLoss
    before = module.forward, module.predict
    module.forward = _while_tracing(_forward, module.forward)  # type: ignore[method-assign]
    module.predict = _while_tracing(_predict, module.predict)  # type: ignore[method-assign]
    try:
        yield
    finally:
        module.forward, module.predict = before  # type: ignore[method-assign]


def _while_tracing(static: Callable[..., Any], dynamic: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(self: nn.AdaptiveLogSoftmaxWithLoss, *args: Any, **kwargs: Any) -> Any:
        return (dynamic if tracing.current() is None else static)(self, *args, **kwargs)

    return chosen


def _forward(self: nn.AdaptiveLogSoftmaxWithLoss, input_: Tensor, target_: Tensor) -> Any:
    single = target_.dim() == 0
    if single:
        input_, target_ = input_.unsqueeze(0), target_.unsqueeze(0)
    output = self.log_prob(input_).gather(1, target_.long().unsqueeze(1)).squeeze(1)
    loss = (-output).mean()
    return AdaptiveSoftmaxOutput(output.squeeze(0) if single else output, loss)


def _predict(self: nn.AdaptiveLogSoftmaxWithLoss, input: Tensor) -> Tensor:
    return torch.argmax(self.log_prob(input), dim=1)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Compute what `torch.nn.functional.gaussian_nll_loss` does; a negative variance is not refused.

    `var` is a number, or a tensor of `input`'s shape, of that shape without its last dimension, or with 1
    there. No gradient knows of the lower limit `eps`.
    """
    if not isinstance(var, Tensor):
        var = torch.full_like(input, var)
    elif var.dim() == input.dim() - 1 and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    limited = var.clone()
    with torch.no_grad():
        limited.clamp_(min=eps)
    losses = 0.5 * (limited.log() + (input - target) ** 2 / limited)
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    if reduction == "mean":
        return losses.mean()
    return losses.sum() if reduction == "sum" else losses


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Compute `torch.nn.functional.embedding` with a dense gradient: the device has no sparse tensors."""
    return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)


def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, *more: Any, **named: Any,
) -> Tensor:  # fmt: skip
    """Compute `torch.nn.functional.embedding_bag` with a dense gradient."""
    return F.embedding_bag(input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, False, *more, **named)


def _in_single(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a loss that has no half-precision arithmetic of its own, computed in float32 and rounded at its end."""

    def single(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.is_floating_point() else tensor

    def computed(input: Tensor, *others: Any, **named: Any) -> Tensor:
        if input.dtype is not torch.float16:
            return loss(input, *others, **named)
        (first, *rest), options = tree_map_only(Tensor, single, ((input, *others), named))
        return loss(first, *rest, **options).half()

    return computed


DEVICE_VERSIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.ctc_loss: ctc_loss, torch.ctc_loss: ctc_loss, F.gaussian_nll_loss: gaussian_nll_loss,
    torch.lstm: recurrent_network("lstm", torch.lstm), torch.gru: recurrent_network("gru", torch.gru),
    torch.rnn_tanh: recurrent_network("rnn_tanh", torch.rnn_tanh),
    torch.rnn_relu: recurrent_network("rnn_relu", torch.rnn_relu),
    F.embedding: embedding, F.embedding_bag: embedding_bag,
    F.multi_margin_loss: _in_single(F.multi_margin_loss),
    F.multilabel_margin_loss: _in_single(F.multilabel_margin_loss),
}  # fmt: skip


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
