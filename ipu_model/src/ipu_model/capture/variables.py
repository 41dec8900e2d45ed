"""The parameters and buffers of a module that a trace uses, and what forward must leave as it found it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._pytree import tree_leaves

from ipu_model.capture.graph import TensorSpec
from ipu_model.capture.torch_private import FakeTensor
from ipu_model.errors import Error

# 64-bit numbers do not exist on the device (executor reference, section 5.4).
DEVICE_DTYPE = {torch.float64: torch.float32, torch.bfloat16: torch.float32}

_BATCH_NORMS = (nn.modules.batchnorm._NormBase,)
_PLAIN = (Tensor, nn.Parameter)
# Where a module keeps what is registered with it.
TENSOR_REGISTRIES = ("_parameters", "_buffers")
REGISTRIES = (*TENSOR_REGISTRIES, "_modules")
_WITHOUT_SHAPE = (UninitializedParameter, UninitializedBuffer)


@dataclass(frozen=True)
class Slot:
    """One distinct tensor of a module under all its dotted names."""

    names: tuple[str, ...]
    tensor: Tensor
    is_buffer: bool

    @property
    def is_constant(self) -> bool:
        """Whether the device treats it as a constant: integer and bool tensors are frozen at compile time."""
        return not self.tensor.is_floating_point()

    @property
    def spec(self) -> TensorSpec:
        """The device's description of the tensor."""
        dtype = DEVICE_DTYPE.get(self.tensor.dtype, self.tensor.dtype)
        return TensorSpec.contiguous(tuple(self.tensor.shape), dtype)

    @property
    def trainable(self) -> bool:
        """Whether an optimiser may change it."""
        return not self.is_buffer and self.tensor.requires_grad


def slots_of(module: nn.Module) -> list[Slot]:
    """List the distinct parameters, then the distinct buffers of `module`, each with all its names.

    Sparse ones are left out: they stay on the host, like plain attributes.

    Raises:
        Error: a buffer that is not a tensor, or a tensor of a lazy module, which has no shape yet.
    """
    found: dict[int, tuple[list[str], Tensor, bool]] = {}
    for is_buffer, named in ((False, _parameters(module)), (True, _buffers(module))):
        for name, tensor in named:
            if type(tensor) in _WITHOUT_SHAPE:  # not isinstance(): parameters of a wrapped model react to it
                raise Error(f"'{name}' is not initialised: call forward of the lazy module once, in plain PyTorch.")
            if is_sparse(tensor):
                continue
            found.setdefault(id(tensor), ([], tensor, is_buffer))[0].append(name)
    return [Slot(tuple(names), tensor, is_buffer) for names, tensor, is_buffer in found.values()]


def is_sparse(tensor: Tensor | None) -> bool:
    """Whether a registered tensor has another layout than an array; reads no attribute of a wrapped one."""
    return type(tensor) in _PLAIN and tensor is not None and tensor.layout is not torch.strided


def _parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return module.named_parameters(remove_duplicate=False)


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if not isinstance(buffer, Tensor):
            raise Error(f"All buffers must be an instance of torch.Tensor (Got {type(buffer)} for '{name}').")
        yield name, buffer


def fake_like(spec: TensorSpec, requires_grad: bool = False) -> Tensor:
    """Make a tensor without data; call inside a fake mode."""
    fake = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
    return fake.requires_grad_(requires_grad and spec.dtype.is_floating_point)


class RegisteredTensors:
    """Parameters and buffers of a module before forward ran, to find those that it replaced or deleted."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters = dict(_parameters(module))
        self._buffers = dict(_buffers(module))
        registered = (*self._parameters.values(), *self._buffers.values())
        self._storages = {id(tensor): tensor.untyped_storage() for tensor in registered if type(tensor) is FakeTensor}

    def check_unchanged(self) -> None:
        """Refuse a forward that replaced or deleted one of them; buffers of batch normalisation are exempt.

        Raises:
            Error: names the tensor and what works instead.
        """
        exempt = self._batch_norm_buffers()
        after = {**dict(_parameters(self._module)), **dict(_buffers(self._module))}
        for kind, before in (("Parameter", self._parameters), ("Buffer", self._buffers)):
            for name, tensor in before.items():
                if name not in exempt and (after.get(name) is not tensor or self._has_other_storage(tensor)):
                    raise Error(_changed(kind, name, "is reassigned within" if name in after else "is removed from"))

    def _has_other_storage(self, tensor: Tensor) -> bool:
        """Whether forward gave `tensor` other storage, as `tensor.data = value` does: no op would be recorded."""
        before = self._storages.get(id(tensor))
        return before is not None and before._cdata != tensor.untyped_storage()._cdata

    def _batch_norm_buffers(self) -> set[str]:
        modules = self._module.named_modules(remove_duplicate=False)
        norms = [(prefix, child) for prefix, child in modules if isinstance(child, _BATCH_NORMS)]
        return {f"{prefix}.{name}" if prefix else name for prefix, child in norms for name in child._buffers}


def _changed(kind: str, name: str, how: str) -> str:
    own_name = name.rsplit(".", 1)[-1]
    return (
        f"{kind} {name} {how} the model when calling the forward method. This is not supported. Consider using "
        f"self.{own_name}.copy_(src) to copy data from a source tensor, where src is the name of the source tensor."
    )


class AttributeKeeper:
    """Remembers the plain attributes of a module tree, to take out fake tensors that forward left behind.

    Python values that forward stores stay, as its other Python side effects do.
    """

    def __init__(self, module: nn.Module) -> None:
        self._before = [(child, _snapshot(child)) for child in module.modules()]

    def restore(self) -> None:
        """Put back every attribute whose value now holds a fake tensor, and every registered tensor."""
        for child, before in self._before:
            for registry in REGISTRIES:
                live = vars(child)[registry]
                if any(live.get(k) is not v for k, v in before[registry].items()) or len(live) != len(before[registry]):
                    live.clear()
                    live.update(before[registry])
            for name, value in list(vars(child).items()):
                if name in _OF_EVERY_MODULE or not _holds_fake(value):
                    continue
                if name not in before:
                    del vars(child)[name]
                elif isinstance(value, (list, dict)) and value is before[name].value:
                    _refill(value, before[name].contents)
                else:
                    vars(child)[name] = before[name].value


@dataclass(frozen=True)
class _Attribute:
    """A plain attribute before forward ran; `contents` is a copy of what a list or dict held."""

    value: Any
    contents: list[Any]

    @classmethod
    def of(cls, value: Any) -> _Attribute:
        if isinstance(value, dict):
            return cls(value, list(value.items()))
        return cls(value, list(value) if isinstance(value, list) else [])


def _refill(container: list[Any] | dict[Any, Any], contents: list[Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        container.update(contents)
    else:
        container.extend(contents)


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _snapshot(module: nn.Module) -> dict[str, Any]:
    """Return copies of the registries, and the plain attributes, by their names."""
    own = {name: _Attribute.of(value) for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
    return {**own, **{name: dict(vars(module)[name]) for name in REGISTRIES}}


def _holds_fake(value: Any) -> bool:
    return any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(value))
