"""How PopTorch treats torch functions in `forward`; gradients flow back through casts (executor reference, 12)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ipu_model.capture import python_backward, torch_private, tracing
from ipu_model.capture.device_ops.ctc import ctc_loss
from ipu_model.capture.device_ops.recurrent_layers import recurrent_network
from ipu_model.capture.device_tensors import IPU, PRINTERS, text_of
from ipu_model.capture.operators import table
from ipu_model.capture.torch_private import FakeTensor
from ipu_model.capture.tracing import Trace
from ipu_model.capture.variables import Origins
from ipu_model.errors import Error

Function: TypeAlias = Callable[..., Any]
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]

_HERE = torch.device("cpu")
_GPUS = frozenset({"cuda", "hip", "mps", "xpu"})
_MAKERS = (torch.tensor, torch.as_tensor)


def _of(owner: Any, names: str) -> list[Function]:
    return [getattr(owner, name) for name in names.split()]


def follow_moves(func: Function, args: Args, kwargs: Kwargs, origins: Origins) -> tuple[Args, Kwargs]:
    """Return the arguments with the pseudo device "ipu" replaced, noting tensors that move to the device."""
    _refuse_gpus(func, args, kwargs)
    device = kwargs.get("device")
    if _kind(device) == "ipu" and func is not torch_private.where_module_moves:
        kwargs = {**kwargs, "device": _HERE}
    if func is Tensor.data_ptr and isinstance(args[0], FakeTensor):
        raise Error(
            "data_ptr(): a tensor on the IPU has no address that Python could read. Compare the tensors themselves, or "
            "leave the call out with poptorch.isRunningOnIpu()."
        )
    if func in _MAKERS and args and isinstance(args[0], Tensor) and not isinstance(args[0], FakeTensor):
        origins.adopt(args[0])
    if func is Tensor.cpu:
        _check_stays(args[0], ".cpu()")
    if func is Tensor.to:
        target = args[1] if len(args) > 1 else kwargs.get("other", device)
        kind = _kind(target)
        if isinstance(target, Tensor):
            kind = "ipu" if isinstance(target, FakeTensor) or origins.is_constant(target) else "cpu"
        elif kind == "ipu" and len(args) > 1:
            args = (args[0], _HERE, *args[2:])
        if kind == "cpu":
            _check_stays(args[0], ".to(tensor)" if isinstance(target, Tensor) else f'.to("{target}")')
        elif kind == "ipu" and not isinstance(args[0], FakeTensor):
            origins.adopt(args[0])
    return args, kwargs


def _kind(device: object) -> str:
    if isinstance(device, torch.device):
        return device.type
    return device.split(":")[0] if isinstance(device, str) else ""


def _refuse_gpus(func: Function, args: Args, kwargs: Kwargs) -> None:
    """Refuse tensors on other accelerators: fake ones would be there although this machine has no such device."""
    target = args[1] if func is Tensor.to and len(args) > 1 else kwargs.get("device")
    kind = "cuda" if func is Tensor.cuda or type(target) is int else _kind(target)  # an int counts GPUs
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

# Functions of torch and methods that want 64-bit indices -> where these are among the arguments, and their name.
_INDEX_OF = {
    **dict.fromkeys(("cross_entropy", "nll_loss"), (1, "target")),
    "one_hot": (0, "tensor"),
    "take_along_dim": (1, "indices"),
    **dict.fromkeys(("gather", "scatter", "scatter_", "scatter_add", "scatter_add_"), (2, "index")),
    **dict.fromkeys(("index_fill", "index_fill_"), (2, "index")),
}


def widen_index(name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Return the arguments of a function with its index in 64 bits, if it has one; what is written to stays."""
    if name not in _INDEX_OF:
        return args, kwargs
    position, keyword = _INDEX_OF[name]
    if len(args) > position:
        return (*args[:position], _wide(args[position]), *args[position + 1 :]), kwargs
    return args, {**kwargs, keyword: _wide(kwargs[keyword])} if keyword in kwargs else kwargs


def _wide(index: Any) -> Any:
    return index.long() if isinstance(index, Tensor) and index.dtype in _NARROW else index


# All floating operands of these take the element type of the activation: products, convolutions, normalisation.
_NAMES = """
    linear bilinear scaled_dot_product_attention multi_head_attention_forward matmul mm bmm mv dot inner addmm addmv
    baddbmm addbmm einsum tensordot __matmul__ __rmatmul__ conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d batch_norm layer_norm group_norm instance_norm rms_norm lstm_cell gru_cell rnn_tanh_cell
    rnn_relu_cell
"""
_FOLLOW_ACTIVATION = frozenset(_NAMES.split())

# Where the activation is not the first argument: a bias that is added, or the equation, comes before it.
_ACTIVATION = dict.fromkeys(("addmm", "addmv", "baddbmm", "addbmm", "einsum"), 1)
_ACTIVATION_NAMES = ("input", "mat1", "mat", "batch1", "query", "input1", "a")

# Positions of running statistics, which keep the element type of their buffers.
_STATISTICS: Mapping[Function, tuple[int, ...]] = {
    **dict.fromkeys((F.batch_norm, F.instance_norm), (1, 2)),
    **dict.fromkeys((torch.batch_norm, torch.instance_norm), (3, 4)),
}
_STATISTICS_NAMES = ("running_mean", "running_var")
_FLOATS = (torch.float16, torch.float32)


def follow_activation(func: Function, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Cast the floating operands of `func`, which follows its activation, to the type of that."""
    named = [kwargs[name] for name in _ACTIVATION_NAMES if name in kwargs]
    candidates = tree_leaves([*args[_ACTIVATION.get(func.__name__, 0) :], *named])
    dtype = next((c.dtype for c in candidates if isinstance(c, Tensor)), None)
    if dtype not in _FLOATS:
        return args, kwargs

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.dtype in _FLOATS and tensor.dtype != dtype else tensor

    keep = _STATISTICS.get(func, ())
    new_args = tuple(a if i in keep else tree_map_only(Tensor, cast, a) for i, a in enumerate(args))
    return new_args, {k: v if k in _STATISTICS_NAMES else tree_map_only(Tensor, cast, v) for k, v in kwargs.items()}


_DENSE_VERSIONS: Mapping[Function, Function] = {
    **dict.fromkeys((torch.sparse.mm, torch.smm, torch.hspmm), torch.matmul),
    torch.sparse.addmm: torch.addmm,
}


def with_dense_constants(func: Function, args: Args, kwargs: Kwargs, origins: Origins) -> tuple[Function, Args, Kwargs]:
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
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda", "ipu"))):
        raise Error(
            f"torch.autocast is not supported by PopTorch (active in module '{scope or 'model'}'). Cast the "
            "model with model.half(), or single tensors in forward with .half() and .float(): layers follow "
            "the element type of their input."
        )


# The losses that PopTorch recognises; huber, Gaussian NLL and the multi-class margin losses are not among them.
_LOSSES = """
    l1_loss mse_loss smooth_l1_loss cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
    poisson_nll_loss hinge_embedding_loss cosine_embedding_loss soft_margin_loss multilabel_soft_margin_loss
    margin_ranking_loss triplet_margin_loss ctc_loss
"""
LOSS_FUNCTIONS = frozenset((*_of(F, _LOSSES), torch.ctc_loss))

_FACTORIES = _of(torch, "zeros ones rand randn arange full tensor empty randint randperm linspace eye")

# What is known about every tensor of the device; its node of autograd is none, as in inference mode.
_FIELDS = {"device": IPU, "is_ipu": True, "is_cpu": False, "grad_fn": None}
_OF_DEVICE_TENSORS: Mapping[Any, object] = {
    Tensor.get_device: IPU.index,
    **{getattr(Tensor, name).__get__: value for name, value in _FIELDS.items()},
}
_HOOKED = _of(Tensor, "register_hook register_post_accumulate_grad_hook")

_logger = logging.getLogger("poptorch::python")


# Functions of torch for which the device runs another version: their own needs values, formats or types it has not.


def embedding(input: Tensor, weight: Tensor, *args: Any, sparse: bool = False, **kwargs: Any) -> Tensor:
    """Compute `torch.nn.functional.embedding` with a dense gradient: the device has no sparse tensors."""
    return F.embedding(input, weight, *args[:4], **kwargs)


def embedding_bag(input: Tensor, weight: Tensor, *args: Any, sparse: bool = False, **kwargs: Any) -> Tensor:
    return F.embedding_bag(input, weight, *args[:5], *((False, *args[6:]) if len(args) > 5 else ()), **kwargs)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count exactly the `minlength` first values, as PopTorch does: the shape of the result is then known."""
    if not isinstance(input, FakeTensor) or not minlength or input.dim() != 1:
        return torch.bincount(input, weights, minlength)
    ones = torch.ones_like(input, dtype=torch.int64) if weights is None else weights.float()
    counts = torch.zeros(minlength + 1, dtype=ones.dtype)  # the last one counts larger values
    return counts.scatter_add(0, input.long().clamp(max=minlength), ones)[:minlength]


DEVICE_VERSIONS: Mapping[Function, Function] = {
    torch.bincount: bincount,
    Tensor.bincount: bincount,
    F.ctc_loss: ctc_loss,
    torch.ctc_loss: ctc_loss,
    F.embedding: embedding,
    F.embedding_bag: embedding_bag,
    **{layer: partial(recurrent_network, layer) for layer in _of(torch, "lstm gru rnn_tanh rnn_relu")},
}


class DeviceFunctions(TorchFunctionMode):
    def __init__(self, trace: Trace, origins: Origins) -> None:
        super().__init__()
        self.trace = trace
        self.origins = origins

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if tracing.current() is not self.trace:
            return func(*args, **(kwargs or {}))  # the host computes something while the trace waits
        python_backward.end_functions(self.trace)
        if func in PRINTERS and isinstance(args[0], FakeTensor):
            return text_of(args[0])
        if func in _OF_DEVICE_TENSORS and (isinstance(args[0], FakeTensor) or self.origins.is_constant(args[0])):
            return _OF_DEVICE_TENSORS[func]
        if func in _HOOKED and isinstance(args[0], FakeTensor) and args[0].requires_grad:
            return python_backward.register_nothing(self.trace, args[1])
        if torch_private.is_differentiated(func):
            python_backward.refuse_derivative(self.trace)
        if func is torch_private.sets_grad_mode:  # which the contexts of torch call, too
            if self.trace.in_function:
                return None
            self.trace.records_gradients = args[0]
        if func is Tensor.ipu:  # type: ignore[attr-defined]  # torch does not declare it
            func, args = Tensor.to, (args[0], IPU)
        refuse_autocast(self.trace.scopes[-1])
        kwargs = dict(kwargs or {})
        names_cpu = _kind(kwargs.get("device")) == "cpu" and func is not torch.empty  # which a draw may fill there
        if names_cpu and not any(isinstance(arg, FakeTensor) for arg in args):  # what it makes has to be moved
            with torch_private.modes_disabled():
                return func(*args, **kwargs)
        args, kwargs = follow_moves(func, args, kwargs, self.origins)
        name = getattr(func, "__name__", "")
        if name in _FOLLOW_ACTIVATION:
            args, kwargs = follow_activation(func, args, kwargs)
        args, kwargs = widen_index(name, args, kwargs)
        if self.origins.holds_sparse:
            func, args, kwargs = with_dense_constants(func, args, kwargs, self.origins)
        if func in _FACTORIES and kwargs.get("device") is None and self.trace.is_first(func):
            _logger.warning("No device set in torch.%s(): forcing to IPU", func.__name__)
        weighted = func in (F.cross_entropy, F.nll_loss)
        if weighted and kwargs.get("weight", args[2] if len(args) > 2 else None) is not None:
            raise Error(
                f"{func.__name__}: class weights are not supported by PopTorch. Use reduction='none' and multiply "
                "the losses of the samples by weight[target], then poptorch.identity_loss(..., reduction='mean')."
            )
        in_handler = self.trace.in_handler or name in table().whole
        with torch_private.replaced(self.trace, in_torch_function=True, in_handler=in_handler):
            result = DEVICE_VERSIONS.get(func, func)(*args, **kwargs)
        if func in LOSS_FUNCTIONS and isinstance(result, Tensor):
            self.trace.loss_marks.append(result)
        return result
