"""Private functions that PopTorch's Python modules share: errors, where code runs, scope names, wrapped objects.

Public programs import these names from here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
from filelock import FileLock
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

from ipu_model import source_lines
from ipu_model.capture import tracing
from ipu_model.errors import Error, require, unsupported
from poptorch._logging import logger

# Libraries that have registered memory with a network card must survive a fork, for example of loader processes.
os.environ.setdefault("RDMAV_FORK_SAFE", "1")

source_lines.skip_package(__name__.partition(".")[0])

# Buffers of these modules change while forward runs on the CPU, too.
BUFFERS_CAN_CHANGE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

# What sums of products may be kept in, with the backend's names.
PARTIALS = {torch.float32: "float", torch.float16: "half"}

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")

# What programs have set; a running trace counts as well.
_is_ipu_context = False
_dispatch_tracing = False


def createPoptorchError(msg: str) -> Error:
    """Return, not raise, a `poptorch.Error` of type `poptorch_py_error` with this message."""
    return Error(msg, type="poptorch_py_error", location="")


def refusal(name: str, nearest: str) -> Callable[..., NoReturn]:
    """Return what stands for a function that is not supported: it says so when it is called."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise unsupported(name, nearest)

    refuse.__name__ = name.rpartition(".")[2]
    return refuse


def isRunningOnIpu() -> bool:
    """Return whether a wrapped model's `forward` is being traced for the device, or `setIpuContext` says so."""
    return _is_ipu_context or tracing.is_tracing()


def setIpuContext(val: bool) -> None:
    """Let `isRunningOnIpu` return True outside a trace as well; False ends this."""
    global _is_ipu_context
    _is_ipu_context = val


def isDispatchTracing() -> bool:
    """Return whether a wrapped model's `forward` is being traced, or `setDispatchTracing` says so."""
    return _dispatch_tracing or tracing.is_tracing()


def setDispatchTracing(val: bool) -> None:
    """Let `isDispatchTracing` return True outside a trace as well; False ends this."""
    global _dispatch_tracing
    _dispatch_tracing = val


class NameScopeHook:
    """Puts the names of a module's submodules in front of those of the ops that they call, until `remove()`."""

    def __init__(self, module: nn.Module) -> None:
        self._handles = []
        for name, child in module.named_modules():
            if name:
                enter = functools.partial(self._enter_fn, name=name.rpartition(".")[2])
                self._handles += [child.register_forward_pre_hook(enter), child.register_forward_hook(self._exit_fn)]

    def _enter_fn(self, module: nn.Module, input: Any, name: str) -> None:
        torch.ops.poptorch.push_name_scope(name)

    def _exit_fn(self, module: nn.Module, input: Any, output: Any) -> None:
        torch.ops.poptorch.pop_name_scope()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def internal_cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype not in (torch.float32, torch.float16):
        raise ValueError(f"Invalid poptorch.cast target type {dtype}. Expecting torch.float or torch.half.")
    return tensor.to(dtype)


def applyOptimizer(optimizer: torch.optim.Optimizer) -> None:
    """Say which parameters are in which group of an optimiser; the executor reads that from the optimiser itself."""
    for index, group in enumerate(optimizer.param_groups):
        torch.ops.poptorch.optimizer_group(index, list(group["params"]))


class OptimizerWrapper(nn.Module):
    """A model together with its optimiser: calls the model, then says which parameters are in which group."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.optimizer = optimizer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self.model(*args, **kwargs)
        applyOptimizer(self.optimizer)
        return outputs


@contextlib.contextmanager
def distributedCacheLock(model: object, opts: Any) -> Iterator[bool]:
    """Let processes that share a cache enter the body one after another; yield whether there is such a lock."""
    folder = opts._backend.cache_folder
    if opts.Distributed.numProcesses <= 1 or folder is None:
        if opts.Distributed.numProcesses > 1:
            logger.warning(
                "Use poptorch.Options.enableExecutableCaching() to avoid compiling the model once per process"
            )
        yield False
        return
    os.makedirs(folder, exist_ok=True)
    require(os.access(folder, os.W_OK), f"Cache folder {folder} is not writable")
    name = hashlib.md5(repr(model).encode(), usedforsecurity=False).hexdigest()
    with FileLock(Path(folder) / f"{name}.lock"):
        yield True


class WeakPtr(WeakIdRef, weakref.ref[Any]):
    """A weak reference that is equal only to other references to the same object; it never compares objects."""


class WeakKeyPtrDict(WeakIdKeyDictionary):
    """A mapping by identity, so that tensors can be keys; it keeps no key alive."""

    def __init__(self, dict: Any = None) -> None:
        super().__init__(dict, WeakPtr)

    def update(self, dict: Any = None) -> None:  # type: ignore[override]  # objects are no keyword arguments
        super().update(dict)


# The classes that wrapped objects have lost for a while, and the classes whose objects are wrapped.
_wrapper_registry: MutableMapping[Any, Any] = WeakKeyPtrDict()
_wrapper_types: list[type] = []


def registerWrapperType(wrapper_type: type) -> None:
    """Let objects of this class count as wrapped: its first base is the class that they have without the wrapping."""
    _wrapper_types.append(wrapper_type)


def isWrapped(obj: object) -> bool:
    return isinstance(obj, tuple(_wrapper_types))


def unwrapIfWrapped(obj: T) -> T:
    """Return the object; a wrapped one has the class again that it has without the wrapping."""
    if isWrapped(obj):
        # Reading an attribute of a wrapped tensor brings newer values from the device first; type(obj) would not.
        object.__setattr__(obj, "__class__", obj.__class__.__bases__[0])
    return obj


def _unwrapIfWrappedAndRegister(obj: Any) -> None:
    if isWrapped(obj):
        _wrapper_registry[obj] = type(obj)
        unwrapIfWrapped(obj)


def _restoreWrapperIfNecessary(obj: Any) -> Any:
    wrapper = _wrapper_registry.get(obj)
    if wrapper is not None:
        object.__setattr__(obj, "__class__", wrapper)
        del _wrapper_registry[obj]
    return obj


def forEachParameterAndBuffer(model: nn.Module, fn: Callable[[str, Tensor], Any]) -> None:
    """Call `fn(name, tensor)` with each parameter and buffer of a model."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        fn(name, tensor)


def unwrapModelIfNecessary(model: nn.Module) -> None:
    """Make a wrapped model and its tensors plain ones, until `rewrapModelIfNecessary`; bring newer weights first."""
    _unwrapIfWrappedAndRegister(model)
    forEachParameterAndBuffer(model, lambda name, tensor: _unwrapIfWrappedAndRegister(tensor))


def rewrapModelIfNecessary(model: nn.Module) -> None:
    _restoreWrapperIfNecessary(model)
    forEachParameterAndBuffer(model, lambda name, tensor: _restoreWrapperIfNecessary(tensor))


def traceMethod(label: str) -> Callable[[Function], Function]:
    """Decorate a method, so that calls are trace points of this name in the object's channel `_profiling`."""

    def decorate(method: Function) -> Function:
        @functools.wraps(method)
        def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self._profiling.tracepoint(label):
                return method(self, *args, **kwargs)

        return cast(Function, traced)

    return decorate


def getBufferAndParameterTensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_buffers()), **dict(model.named_parameters())}


def getBufferAndParameterAddresses(model: nn.Module) -> dict[str, int]:
    """Return where the values of a model's buffers and parameters are in memory, by name."""
    return {name: tensor.data_ptr() for name, tensor in getBufferAndParameterTensors(model).items()}


def errorOnBufferOrParameterAddressChanges(old_addresses: Mapping[str, int], new_addresses: Mapping[str, int]) -> None:
    """Raise `poptorch.Error` if a buffer or parameter of `old_addresses` is elsewhere, or missing, in the new ones."""
    for name, address in old_addresses.items():
        if new_addresses.get(name) != address:
            raise createPoptorchError(
                f"Buffer or parameter {name} is reassigned within the model while it runs on the IPU, which is not "
                "supported. Change it in place instead: tensor.copy_(value)."
            )
