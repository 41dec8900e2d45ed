"""Copy newer weights from the device whenever the host reads a trained module.

`trainingModel` changes the classes of the user's module, its parameters and buffers: the new ones first ask all
training executors that share the object to copy newer weights to the host.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model.errors import Error
from ipu_model.process import interrupt_postponed
from poptorch._impl import _wrapper_registry, registerWrapperType

# What pickles of wrapped modules call: it makes an empty object of a class, which must itself be allowed.
torch.serialization.add_safe_globals([copyreg._reconstructor, object])  # type: ignore[attr-defined]  # not in typeshed

_MODULE_TRIGGERS = frozenset({"_parameters", "_buffers", "forward"})
RUNS = itertools.count(1)

Links = tuple["Wrapping", ...]


def refresh(links: Links) -> None:
    for link in sorted(links, key=lambda link: link.last_run):
        link.refresh()


def links_of(obj: Any) -> Links:
    links: Links = type(obj).__dict__.get("_poptorch_links", ())
    return links


class Wrapped:
    """The second base of all wrapped objects' classes; each executor that wraps an object creates one for it."""

    __slots__ = ()  # so that objects can change between their classes


registerWrapperType(Wrapped)


def original_class(obj: Any) -> type:
    original: type = type(obj).__dict__.get("_poptorch_original", type(obj))
    return original


def links_into(module: nn.Module) -> list[Wrapping]:
    """Return the wrappings of the living training executors that own any parameter or buffer of `module`."""
    links: dict[Wrapping, None] = {}
    for child in module.modules():
        for registry in ("_parameters", "_buffers"):
            for tensor in object.__getattribute__(child, registry).values():
                links.update((link, None) for link in links_of(tensor) if link.executor() is not None)
    return list(links)


def shallow_copy(module: nn.Module) -> nn.Module:
    """Copy the top-level object as an instance of its original class; registries and submodules stay shared."""
    # `copy.copy` would use the class's own pickling methods.
    kind = original_class(module)
    twin: nn.Module = object.__new__(kind)
    twin.__dict__.update(vars(module))
    for name in (slot for base in kind.__mro__ for slot in base.__dict__.get("__slots__", ())):
        if hasattr(module, name):
            object.__setattr__(twin, name, getattr(module, name))
    return twin


class Wrapping:
    """Changes the classes of a module and its tensors, and puts them back.

    It is the way from a wrapped object to its training executor, which it does not keep alive.
    """

    def __init__(self, module: nn.Module, executor: Any) -> None:
        self.executor: Callable[[], Any] = weakref.ref(executor)
        # Counts transfers of weights in either direction; a tied inference executor uploads a new version.
        self.version = 0
        self.last_run = 0
        self._module = module
        self._wrapped: list[Any] = []
        # Shallow copies of the module; they stay wrapped as long as the module does.
        self.copies: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._classes: dict[tuple[type, Links], type] = {}

    def refresh(self) -> bool:
        executor = self.executor()
        return executor is not None and executor.copyWeightsToHostIfNeeded()

    @interrupt_postponed()
    def apply(self, tensors: list[Tensor]) -> None:
        """Wrap the module and `tensors`, its parameters and buffers, unless that is done."""
        if self._wrapped:
            return
        if links_of(self._module):
            raise RuntimeError(
                "Model has already been wrapped in 'poptorch.trainingModel'. Call destroy() on the executor or on the "
                "model first to wrap it again; an executor that was never compiled unwraps its model when it is "
                "deleted."
            )
        for name, buffer in self._module.named_buffers():
            if original_class(buffer) is not torch.Tensor:
                raise Error(
                    f"All buffers must be an instance of torch.Tensor (Got {original_class(buffer)} for "
                    f"'{name}'). Register a plain tensor, such as buffer.detach()."
                )
        for obj in (*tensors, self._module):
            self._set_links(obj, (*links_of(obj), self))
            self._wrapped.append(obj)

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Let the body, which must not need newer weights of this executor's device, read wrapped objects directly."""
        # Objects that a program has unwrapped for a while stay so.
        wrapped = [obj for obj in self._wrapped if self in links_of(obj)]
        for obj in wrapped:
            self._set_links(obj, self._other_links(obj))
        try:
            yield
        finally:
            for obj in wrapped:
                self._set_links(obj, (*self._other_links(obj), self))

    def _other_links(self, obj: Any) -> Links:
        return tuple(link for link in links_of(obj) if link is not self)

    @interrupt_postponed()
    def undo(self) -> None:
        for obj in self._wrapped:
            # A program may have unwrapped it for a while; do not wrap it for this executor again.
            _wrapper_registry.pop(obj, None)
            self._set_links(obj, self._other_links(obj))
        self._wrapped.clear()
        for twin in self.copies:
            self._set_links(twin, ())
        self.copies.clear()

    def _set_links(self, obj: Any, links: Links) -> None:
        original = original_class(obj)
        key = (original, links)
        if links and key not in self._classes:
            make = _module_class if issubclass(original, nn.Module) else _tensor_class
            self._classes[key] = make(original, links)
        object.__setattr__(obj, "__class__", self._classes[key] if links else original)


def _module_class(original: type, links: Links) -> type:
    (link,) = links  # A module is wrapped for training once.

    def read(self: nn.Module, name: str) -> Any:
        if name in _MODULE_TRIGGERS:
            refresh(links)
        return original.__getattribute__(self, name)  # type: ignore[call-arg, arg-type]  # a class, not an object

    def copied(self: nn.Module) -> nn.Module:
        refresh(links)
        twin: nn.Module = _as_original(self, original, copy.copy)
        object.__setattr__(twin, "__class__", type(self))
        link.copies.add(twin)
        return twin

    def destroy(self: nn.Module) -> None:
        executor = link.executor()
        if executor is not None:
            executor.destroy()

    members: dict[str, Any] = {"__copy__": copied, "__getattribute__": read, "__doc__": original.__doc__}
    members |= {"destroy": destroy, "copyWeightsToHostIfNeeded": lambda self: link.refresh()}
    return type(f"Poptorch{original.__name__}", (original, Wrapped), {**_common_members(original, links), **members})


def _tensor_class(original: type, links: Links) -> type:
    def read(self: Tensor, name: str) -> Any:
        refresh(links)
        return original.__getattribute__(self, name)  # type: ignore[call-arg, arg-type]  # a class, not an object

    def function(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for kind in types:
            refresh(kind.__dict__.get("_poptorch_links", ()))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def text(self: Tensor, **kwargs: Any) -> str:
        refresh(links)
        return str(_as_original(self, original, lambda plain: plain.__repr__(**kwargs)))

    members = {"__getattribute__": read, "__torch_function__": classmethod(function), "__repr__": text}
    # A plain tensor of a module is a buffer.
    name = "Buffer" if original is Tensor else original.__name__
    return type(f"Poptorch{name}", (original, Wrapped), {**_common_members(original, links), **members})


def _common_members(original: type, links: Links) -> dict[str, Any]:
    """Return what all wrapped classes have; copies and pickles are instances of the original class."""

    def method(name: str) -> Callable[..., Any]:
        def plain(self: Any, *args: Any) -> Any:
            refresh(links)
            return _as_original(self, original, lambda obj: getattr(obj, name)(*args))

        return plain

    def reduce(self: Any, protocol: Any) -> Any:
        refresh(links)
        reduced = _as_original(self, original, lambda obj: obj.__reduce_ex__(protocol))
        if reduced[0] is copyreg.__newobj__ and len(reduced[1]) == 1:  # type: ignore[attr-defined]  # not in typeshed
            # pickle would compare the class in it with the wrapped one.
            return copyreg._reconstructor, (original, object, None), *reduced[2:]  # type: ignore[attr-defined]  # same
        return reduced

    copies = {name: method(name) for name in ("__copy__", "__deepcopy__") if hasattr(original, name)}
    origin = {"_poptorch_links": links, "_poptorch_original": original, "__module__": original.__module__}
    return {"__reduce_ex__": reduce, **copies, **origin}


def _as_original(obj: Any, original: type, action: Callable[[Any], Any]) -> Any:
    wrapped = type(obj)
    object.__setattr__(obj, "__class__", original)
    try:
        return action(obj)
    finally:
        object.__setattr__(obj, "__class__", wrapped)
