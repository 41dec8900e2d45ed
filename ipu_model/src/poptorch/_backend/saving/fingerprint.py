"""A digest of everything that decides what tracing a module gives: its code, attributes and constants.

Code of installed packages counts by the package's version, all other code by what it is compiled to, as far as it can
be reached from the module. Weights count by shape and type, since a trace does not depend on their values.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import logging
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ipu_model.capture.variables import slots_of
from poptorch._backend.saving import origins
from poptorch._backend.saving.origins import NotRepeatable
from poptorch._backend.wrapping import original_class

_NUMBERS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), slice, range)
_TORCH_CONSTANTS = (
    torch.dtype, torch.layout, torch.memory_format, torch.device, torch.Size, torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)  # fmt: skip
_BUILTIN_KINDS = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, np.ufunc,
)  # fmt: skip
# What tracing does not read, or reads through instances.
_UNREAD_MEMBERS = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__abstractmethods__",
    "_abc_impl", "__init__", "__new__", "__repr__", "__str__", "__reduce__", "extra_repr", "__firstlineno__",
    "__static_attributes__", "__parameters__", "__orig_bases__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__slots__",
    "__dataclass_fields__", "__dataclass_params__",
})  # fmt: skip


def fingerprint(module: nn.Module, *others: Any) -> str:
    """Return the digest of `module` and of further values that a trace depends on.

    Raises:
        NotRepeatable: something whose influence on a trace cannot be told; the text names it.
    """
    digest = _Digest(module)
    try:
        for value in (origins.environment(), module, *others):
            digest.add(value)
    except RecursionError:
        raise NotRepeatable("values nested too deeply") from None
    return digest.result()


class _Digest:
    """Feeds values to a hash; an object met again counts by when it was met first."""

    def __init__(self, module: nn.Module) -> None:
        self._hash = hashlib.blake2b(digest_size=20)
        self._met: dict[Any, int] = {}
        self._kept: list[Any] = []
        self._weights = {id(slot.tensor) for slot in slots_of(module) if not slot.is_constant}

    def result(self) -> str:
        """Return the digest as hexadecimal digits."""
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        """Feed any value."""
        if isinstance(value, _NUMBERS) and not isinstance(value, enum.Enum):
            self._token(type(value).__name__, repr(value))
        elif isinstance(value, _TORCH_CONSTANTS):
            self._token("torch", str(value))
        elif type(value) is tuple:
            self._items("tuple", value)
        elif isinstance(value, (set, frozenset)):
            self._items("set", sorted(self._apart(item) for item in value))
        elif isinstance(value, _BUILTIN_KINDS):
            self._builtin(value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif not self._met_before(value):
            self._object(value)

    def _object(self, value: Any) -> None:
        """Feed something that has an identity, met for the first time."""
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, (type, types.FunctionType)):
            self._definition(value)
        elif isinstance(value, (types.MethodType, functools.partial, property, staticmethod, classmethod)):
            self._items("method", _parts_of(value))
        elif isinstance(value, enum.Enum):
            self._items("enum", (type(value).__qualname__, value.name))
        elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
            self._items("array", (str(value.dtype), value.shape, value.tobytes()))
        elif isinstance(value, weakref.ReferenceType):
            self.add(value())
        elif isinstance(value, logging.Logger):
            self._token("logger", value.name)
        else:
            self._instance(value)

    def _instance(self, value: Any) -> None:
        """Feed a container, or an instance of a class by its attributes."""
        kind = original_class(value)
        is_container = isinstance(value, (list, tuple, dict))
        attributes = vars(value) if hasattr(value, "__dict__") else None
        slots = [name for base in kind.__mro__ for name in _as_names(base.__dict__.get("__slots__", ()))]
        if not is_container and attributes is None and not slots:
            raise NotRepeatable(f"an object of type {kind.__module__}.{kind.__qualname__}")
        if kind not in (list, dict):
            self.add(kind)
        if isinstance(value, dict):
            self._mapping("dict", value)
        elif is_container:
            self._items("list", value)
        self._mapping("attributes", attributes or {})
        self._mapping("slots", {name: getattr(value, name) for name in slots if hasattr(value, name)})

    def _module(self, module: nn.Module) -> None:
        self.add(original_class(module))
        for name, value in vars(module).items():
            self._token("attribute", name)
            if isinstance(value, dict) and name.endswith("_hooks"):
                # Their keys count all hooks of the process.
                self._items("hooks", value.values())
            else:
                self.add(value)

    def _tensor(self, tensor: Tensor) -> None:
        """Feed a weight by what it looks like, and any other tensor, which becomes a constant, by its values."""
        with torch._C.DisableTorchFunctionSubclass():
            look = (original_class(tensor).__qualname__, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
            self._items("tensor", (*look, tensor.device.type))
            if id(tensor) in self._weights or tensor.device.type == "meta":
                return
            if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
                raise NotRepeatable("a tensor that is not dense or not on the CPU")
            flat = tensor.detach().contiguous().reshape(-1)
            self._items("values", (tuple(tensor.stride()), flat.view(torch.uint8).numpy().tobytes()))

    def _builtin(self, value: Any) -> None:
        owner = getattr(value, "__self__", None)
        origins.refuse_impure(value)
        self._token("builtin", f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}")
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            self.add(owner)

    def _definition(self, value: Any) -> None:
        """Feed a class or a function: by the version of its package, or by its code."""
        known = origins.version_of(value.__module__ or "")
        self._token("definition", f"{value.__qualname__} {known or ''}")
        if known:
            origins.refuse_impure(value)
        elif isinstance(value, type):
            self._items("bases", value.__mro__[1:])
            members = {name: member for name, member in vars(value).items() if name not in _UNREAD_MEMBERS}
            self._mapping("members", members)
        else:
            self._function(value)

    def _function(self, function: types.FunctionType) -> None:
        self.add(function.__code__)
        self._items("defaults", (function.__defaults__, function.__kwdefaults__))
        self._items("closure", [_content(cell) for cell in function.__closure__ or ()])
        names = _names_in(function.__code__)
        for name in sorted(names & function.__globals__.keys()):
            self._token("global", name)
            self._global(function.__globals__[name], names)
        for name in _imported_in(function.__code__):
            self._imported(name, names)
        for name in sorted((names - function.__globals__.keys()) & origins.IMPURE_BUILTINS):
            raise NotRepeatable(f"{function.__qualname__} calls {name}()")

    def _imported(self, name: str, names: frozenset[str]) -> None:
        """Feed what a function imports while it runs."""
        module = sys.modules.get(name)
        if module is None:
            raise NotRepeatable(f"forward may import {name or 'from its own package'}")
        self._global(module, names)

    def _global(self, value: Any, names: frozenset[str]) -> None:
        """Feed what a function finds under a global name; of a module only what the function may read of it."""
        if not isinstance(value, types.ModuleType):
            self.add(value)
            return
        origins.refuse_impure(value, names)
        known = origins.version_of(value.__name__)
        self._token("module", f"{value.__name__} {known or ''}")
        if known or self._met_before(value, names):
            return
        for name in sorted(names & vars(value).keys()):
            self._token("member", name)
            self._global(vars(value)[name], names)

    def _code(self, code: types.CodeType) -> None:
        self._token("code", f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags}")
        self._items("names", (code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars))
        self._items("handlers", (getattr(code, "co_exceptiontable", b""),))

    def _mapping(self, kind: str, values: Mapping[Any, Any]) -> None:
        self._token(kind, str(len(values)))
        for key, value in values.items():
            self.add(key)
            self.add(value)

    def _items(self, kind: str, values: Iterable[Any]) -> None:
        listed = list(values)
        self._token(kind, str(len(listed)))
        for value in listed:
            self.add(value)

    def _apart(self, value: Any) -> str:
        """Return the digest of one element of a set, whose order means nothing."""
        own = _Digest.__new__(_Digest)
        own._hash, own._met, own._kept, own._weights = hashlib.blake2b(), {}, [], self._weights
        own.add(value)
        return own.result()

    def _met_before(self, value: Any, *context: Any) -> bool:
        key = (id(value), *context)
        number = self._met.get(key)
        if number is not None:
            self._token("again", str(number))
            return True
        self._met[key] = len(self._met)
        # Kept alive: the id of an object that is gone may be given to another one.
        self._kept.append(value)
        return False

    def _token(self, kind: str, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self._hash.update(f"{kind}:{len(data)}:".encode())
        self._hash.update(data)


def _names_in(code: types.CodeType) -> frozenset[str]:
    """Return the names that code may look up: those it uses, and text in it that `getattr` may be given."""
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    texts = [constant for constant in code.co_consts if isinstance(constant, str) and constant.isidentifier()]
    return frozenset(code.co_names).union(texts, *inner)


def _imported_in(code: types.CodeType) -> list[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    own = [str(step.argval) for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"]
    return sorted({*own, *(name for each in inner for name in _imported_in(each))})


def _parts_of(value: Any) -> tuple[Any, ...]:
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    return (value.__func__,)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _as_names(slots: Any) -> tuple[str, ...]:
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
