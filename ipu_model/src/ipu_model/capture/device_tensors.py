"""The tensors that forward sees while it is traced: fake ones that pass for those of PopTorch's device "ipu"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from ipu_model.capture import torch_private, tracing
from ipu_model.capture.torch_private import FakeTensor, intercepted
from ipu_model.errors import Error

IPU = torch.device("ipu", 0)

WITHOUT_DATA = (
    "an IPU tensor that a hook, an attribute or a global variable kept when a model was traced, so it has no data. "
    "Return it from that model's forward, or anchor it with poptorch.Options().anchorTensor(short_name, long_name)."
)
PRINTERS = frozenset({Tensor.__repr__, Tensor.__format__})


class _PassesFor(type(nn.Parameter)):  # type: ignore[misc]  # a metaclass of torch
    """Makes a class equal to the one whose name it has, as in `type(x) == torch.Tensor` and in tables of types."""

    passes_for: type[Tensor]

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.passes_for

    def __hash__(cls) -> int:
        return hash(cls.passes_for)

    def __repr__(cls) -> str:
        return repr(cls.passes_for)


class DeviceTensor(FakeTensor, metaclass=_PassesFor):
    passes_for: type[Tensor] = Tensor

    @property  # type: ignore[misc]  # nobody sets it
    def device(self) -> torch.device:  # type: ignore[override]  # same
        """The device that forward sees; what computes with a fake tensor wants the one that it is made for."""
        if torch_private.function_modes_active():
            return IPU
        made_for: torch.device = super().device
        return made_for


class DeviceParameter(DeviceTensor, nn.Parameter):  # type: ignore[metaclass]  # _PassesFor is one of Parameter's
    passes_for = nn.Parameter

    def __deepcopy__(self, memo: Any) -> Tensor:
        return nn.Parameter(self.data.clone(), self.requires_grad)


@contextmanager
def parameters_stay() -> Iterator[None]:
    """Let parameters of the device stay parameters when forward moves a module or makes a parameter of them."""
    with intercepted(torch_private.module_moved, _move), intercepted(torch_private.parameter_made, _make):
        yield


def _move(original: Any, module: Any, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    if tracing.current() is None:
        return cast(nn.Module, original(module, fn, recurse))
    for child in module.children() if recurse else ():
        child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                value = fn(parameter)
            module._parameters[name] = parameter if value is parameter else nn.Parameter(value, parameter.requires_grad)
    for name, buffer in module._buffers.items():
        module._buffers[name] = None if buffer is None else fn(buffer)
    return cast(nn.Module, module)


def _make(original: Any, cls: type, data: Any = None, requires_grad: bool = True) -> nn.Parameter:
    plain = data.data if isinstance(data, DeviceParameter) else data
    return cast(nn.Parameter, original(cls, plain, requires_grad))


for _class in (DeviceTensor, DeviceParameter):
    _class.__name__, _class.__qualname__ = _class.passes_for.__name__, _class.passes_for.__qualname__


class KeptTensor(DeviceTensor):  # type: ignore[metaclass]  # as above
    """What a tensor of the device becomes when its trace has ended: it has a shape and a type, and no values."""

    device = IPU  # in place of a property

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRINTERS:
            return text_of(args[0])
        if func in _KNOWN:
            with torch_private.without_subclass_functions():
                return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            name = func.__self__.__name__
        raise Error(f"'{name}' is asked of {WITHOUT_DATA}")

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self


_FIELDS = "shape dtype ndim layout requires_grad is_leaf grad grad_fn"
_METHODS = "size dim ndimension numel nelement stride is_floating_point is_complex element_size __len__ __hash__"
_KNOWN = {
    *(getattr(Tensor, name).__get__ for name in _FIELDS.split()),
    *(getattr(Tensor, name) for name in _METHODS.split()),
}


def become(kind: type[FakeTensor], tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            object.__setattr__(tensor, "__class__", kind)


def text_of(tensor: Tensor) -> str:
    """Return how a tensor of the device prints: it has no values yet."""
    usual = tensor.dtype in (torch.get_default_dtype(), torch.int64, torch.bool)
    dtype = "" if usual else f", dtype={tensor.dtype}"
    return f"tensor(<unavailable>, size={tuple(tensor.shape)}, device='ipu:0'{dtype})"
