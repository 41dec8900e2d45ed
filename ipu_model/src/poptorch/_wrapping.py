"""How reading a trained module on the host brings its weights back from the device first.

`trainingModel` changes the class of the user's module, its parameters and its buffers. The new classes do what the
old ones did, after asking the training executor to copy newer device weights to the host.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from poptorch._executor import PoplarExecutor

_MODULE_TRIGGERS = frozenset({"_parameters", "_buffers", "forward"})


class HostLink:
    """The way from a wrapped object to its training executor."""

    def __init__(self, executor: PoplarExecutor) -> None:
        self._executor = weakref.ref(executor)

    @property
    def executor(self) -> PoplarExecutor | None:
        """The training executor, if it is still alive."""
        return self._executor()

    def refresh(self) -> None:
        """Copy weights to the host if the device has newer ones."""
        executor = self._executor()
        if executor is not None:
            executor.copyWeightsToHostIfNeeded()


def link_of(obj: Any) -> HostLink | None:
    """Return the link of a wrapped module, parameter or buffer, else `None`; reads nothing from the device."""
    return type(obj).__dict__.get("_poptorch_link")


def training_executors(module: nn.Module) -> list[PoplarExecutor]:
    """Return the training executors that own any parameter or buffer of `module`."""
    found: dict[int, PoplarExecutor] = {}
    for child in module.modules():
        registries = (object.__getattribute__(child, "_parameters"), object.__getattribute__(child, "_buffers"))
        for tensor in (t for registry in registries for t in registry.values() if t is not None):
            link = link_of(tensor)
            if link is not None and link.executor is not None:
                found[id(link.executor)] = link.executor
    return list(found.values())


class Wrapping:
    """The changed classes of one user module; `undo` puts the original ones back."""

    def __init__(self, module: nn.Module, tensors: Iterable[Tensor], executor: PoplarExecutor) -> None:
        self._link = HostLink(executor)
        self._originals: list[tuple[Any, type]] = []
        classes: dict[type, type] = {}
        for tensor in tensors:
            kind = type(tensor)
            if kind not in classes:
                classes[kind] = _tensor_class(kind, self._link)
            self._change(tensor, classes[kind])
        self._change(module, _module_class(type(module), self._link))

    def _change(self, obj: Any, new: type) -> None:
        self._originals.append((obj, type(obj)))
        obj.__class__ = new

    def undo(self) -> None:
        """Give every object its original class back."""
        for obj, original in self._originals:
            object.__setattr__(obj, "__class__", original)
        self._originals.clear()


def _module_class(original: type, link: HostLink) -> type:
    def read(self: nn.Module, name: str) -> Any:
        if name in _MODULE_TRIGGERS:
            link.refresh()
        return original.__getattribute__(self, name)

    def reduce(self: nn.Module, protocol: int) -> Any:
        link.refresh()
        return _reduced_as(self, original, protocol)

    def destroy(self: nn.Module) -> None:
        if link.executor is not None:
            link.executor.destroy()

    def copy_weights(self: nn.Module) -> bool:
        return link.executor.copyWeightsToHostIfNeeded() if link.executor is not None else False

    members = {
        "_poptorch_link": link, "__getattribute__": read, "__reduce_ex__": reduce, "destroy": destroy,
        "copyWeightsToHostIfNeeded": copy_weights, "__module__": original.__module__, "__doc__": original.__doc__,
    }  # fmt: skip
    return type(f"Poptorch{original.__name__}", (original,), members)


def _tensor_class(original: type, link: HostLink) -> type:
    def read(self: Tensor, name: str) -> Any:
        link.refresh()
        return original.__getattribute__(self, name)

    def function(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        link.refresh()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def reduce(self: Tensor, protocol: int) -> Any:
        link.refresh()
        return _reduced_as(self, original, protocol)

    def deep_copy(self: Tensor, memo: dict[int, Any]) -> Any:
        link.refresh()
        return _as_original(self, original, lambda tensor: tensor.__deepcopy__(memo))

    members = {
        "_poptorch_link": link, "__getattribute__": read, "__torch_function__": classmethod(function),
        "__reduce_ex__": reduce, "__deepcopy__": deep_copy, "__module__": original.__module__,
    }  # fmt: skip
    return type(f"Poptorch{original.__name__}", (original,), members)


def _reduced_as(obj: Any, original: type, protocol: int) -> Any:
    """Pickle `obj` as an instance of its original class: copies and saved files are unwrapped."""
    return _as_original(obj, original, lambda plain: plain.__reduce_ex__(protocol))


def _as_original(obj: Any, original: type, action: Any) -> Any:
    wrapped = type(obj)
    object.__setattr__(obj, "__class__", original)
    try:
        return action(obj)
    finally:
        object.__setattr__(obj, "__class__", wrapped)
