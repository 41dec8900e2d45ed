"""The tensors of a module that a trace uses, and what forward must leave unchanged.

As in PopTorch, plain tensor attributes stay on the host, where ops run at once and change them permanently. For an op
of the device they are constants with their present value; what the device has written to stays there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ipu_model.capture.graph import TensorSpec
from ipu_model.capture.torch_private import FakeTensor
from ipu_model.errors import Error

_DEVICE_DTYPE = {torch.float64: torch.float32, torch.bfloat16: torch.float16}

_PLAIN = (Tensor, nn.Parameter)
# Where a module keeps what is registered with it.
TENSOR_REGISTRIES = ("_parameters", "_buffers")
REGISTRIES = (*TENSOR_REGISTRIES, "_modules")
_OBJECTS = (Distribution, Transform, SimpleNamespace)
_DEEPEST = 6
_WITHOUT_SHAPE = (UninitializedParameter, UninitializedBuffer)


def device_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that numbers of a type have on the device (operators reference, 4)."""
    return _DEVICE_DTYPE.get(dtype, dtype)


@dataclass(frozen=True, eq=False)
class Slot:
    names: tuple[str, ...]
    tensor: Tensor
    is_buffer: bool

    @property
    def is_constant(self) -> bool:
        """Whether the device treats it as a constant: integer and bool tensors are frozen at compile time."""
        return not self.tensor.is_floating_point()

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec.contiguous(tuple(self.tensor.shape), device_dtype(self.tensor.dtype))

    @property
    def trainable(self) -> bool:
        return not self.is_buffer and self.tensor.requires_grad


def slots_of(module: nn.Module) -> list[Slot]:
    """List the distinct parameters, then buffers, but no sparse ones; `Error`: no tensor, or one of a lazy module."""
    found: dict[int, tuple[list[str], Tensor, bool]] = {}
    for is_buffer, named in ((False, module.named_parameters(remove_duplicate=False)), (True, _buffers(module))):
        for name, tensor in named:
            if type(tensor) in _WITHOUT_SHAPE:  # not isinstance(): parameters of a wrapped model react to it
                raise Error(f"'{name}' is not initialised: call forward of the lazy module once, in plain PyTorch.")
            if is_sparse(tensor):
                continue
            found.setdefault(id(tensor), ([], tensor, is_buffer))[0].append(name)
    return [Slot(tuple(names), tensor, is_buffer) for names, tensor, is_buffer in found.values()]


def is_sparse(tensor: Tensor | None) -> bool:
    return type(tensor) in _PLAIN and tensor is not None and tensor.layout is not torch.strided


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if not isinstance(buffer, Tensor):
            raise Error(f"All buffers must be an instance of torch.Tensor (Got {type(buffer)} for '{name}').")
        yield name, buffer


def fake_like(spec: TensorSpec, requires_grad: bool = False) -> Tensor:
    fake = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
    return fake.requires_grad_(requires_grad and spec.dtype.is_floating_point)


@contextmanager
def tensors_unchanged(module: nn.Module) -> Iterator[None]:
    """Refuse a body that replaces or deletes a parameter or buffer; buffers of batch normalisation are exempt."""
    parameters = module.named_parameters(remove_duplicate=False)
    registered = [("Parameter", *named) for named in parameters] + [("Buffer", *named) for named in _buffers(module)]
    # `tensor.data = value` gives a tensor other storage: no op is recorded.
    storages = [tensor.untyped_storage() if isinstance(tensor, FakeTensor) else None for *_, tensor in registered]
    yield
    children = module.named_modules(remove_duplicate=False)
    norms = [(prefix, child) for prefix, child in children if isinstance(child, nn.modules.batchnorm._NormBase)]
    exempt = {f"{prefix}.{name}" if prefix else name for prefix, child in norms for name in child._buffers}
    after = {**dict(module.named_parameters(remove_duplicate=False)), **dict(_buffers(module))}
    for (kind, name, tensor), storage in zip(registered, storages):
        has_other = storage is not None and storage._cdata != tensor.untyped_storage()._cdata
        if name not in exempt and (has_other or after.get(name) is not tensor):
            how = "is reassigned within" if name in after else "is removed from"
            raise Error(
                f"{kind} {name} {how} the model when calling the forward method. This is not supported. Consider "
                f"using self.{name.rpartition('.')[2]}.copy_(src) to copy data from a source tensor, where src is "
                "the name of the source tensor."
            )


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


# For modules with attributes that hold tensors of an ended trace: what these attributes were before.
_replaced: WeakIdKeyDictionary = WeakIdKeyDictionary()


@contextmanager
def registries_restored(module: nn.Module) -> Iterator[None]:
    """Put back registered tensors after the body; an attribute that holds a fake tensor then keeps it for a while."""
    snapshots = [(child, _snapshot(child)) for child in module.modules()]
    try:
        yield
    finally:
        for child, before in snapshots:
            for registry in REGISTRIES:
                _, registered = before[registry]
                live = vars(child)[registry]
                if any(live.get(k) is not v for k, v in registered.items()) or len(live) != len(registered):
                    live.clear()
                    live.update(registered)
            _replaced[child] = {name: before.get(name) for name in vars(child) if _holds_fake(child, name)}


def restore_attributes(module: nn.Module) -> None:
    """Put back the attributes that still hold tensors of an earlier trace, which are of no use to another one."""
    for child in module.modules():
        for name, before in _replaced.pop(child, {}).items():
            if name in vars(child) and _holds_fake(child, name):
                _put_back(vars(child), name, before)


def _holds_fake(module: nn.Module, name: str) -> bool:
    return name not in _OF_EVERY_MODULE and any(
        isinstance(leaf, FakeTensor) for leaf in tree_leaves(vars(module)[name])
    )


def _snapshot(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    own = {name: value for name, value in vars(module).items() if name in REGISTRIES or name not in _OF_EVERY_MODULE}
    return {name: (value, copy(value) if isinstance(value, (list, dict)) else None) for name, value in own.items()}


def _put_back(attributes: dict[str, Any], name: str, before: tuple[Any, Any] | None) -> None:
    if before is None:
        del attributes[name]
        return
    value, (earlier, contents) = attributes[name], before
    attributes[name] = earlier
    if value is earlier and isinstance(value, (list, dict)):
        value.clear()
        value.update(contents) if isinstance(value, dict) else value.extend(contents)


class Origins:
    def __init__(self, module: nn.Module, slots: Sequence[Slot], *, training: bool) -> None:
        self._weights = {id(slot.tensor): slot.names[0] for slot in slots if not slot.is_constant}
        # A tensor that shares memory with a weight changes with it on the host, but would not on the device.
        trained = [slot for slot in slots if training and slot.trainable]
        self._trained = {storage_key(slot.tensor): slot.names[0] for slot in trained}
        # Tensors are identified by `id` or storage, so every known tensor must stay alive.
        self._kept = [slot.tensor for slot in slots if slot.is_constant]
        self._constants = {id(tensor) for tensor in self._kept}
        self._held: set[int] = set()
        self.holds_sparse = False
        for tensor in _attributes(module):
            if id(tensor) not in self._weights:
                self.hold(tensor)

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether `tensor` is on the device, as an integer parameter or buffer or because forward moved it there."""
        return id(tensor) in self._constants

    def is_held(self, tensor: Tensor) -> bool:
        """Whether `tensor` is a plain attribute of the module, or was computed from such attributes on the host."""
        return storage_key(tensor) in self._held

    def is_stranger(self, tensor: Tensor) -> bool:
        return self.weight(tensor) is not None or not (self.is_constant(tensor) or self.is_held(tensor))

    def weight(self, tensor: Tensor) -> str | None:
        """Name the parameter or buffer that should have a stand-in in place of `tensor`, or whose view it is."""
        return self._weights.get(id(tensor)) or self._trained.get(storage_key(tensor))

    def hold(self, tensor: Tensor) -> None:
        self._kept.append(tensor)
        self._held.add(storage_key(tensor))
        self.holds_sparse |= tensor.layout is not torch.strided

    def adopt(self, tensor: Tensor) -> None:
        self._kept.append(tensor)
        self._constants.add(id(tensor))

    def refuse(self, tensor: Tensor, scope: str) -> Error:
        weight = self.weight(tensor)
        if weight is not None:
            return Error(
                f"'{weight}' is used through a reference kept outside the module's registered parameters and "
                "buffers, so the device would never see its updates. Use it as an attribute of its module."
            )
        return Error(
            f"Expected an IPU tensor but got tensor(device=cpu, shape={list(tensor.shape)}, dtype={tensor.dtype}). "
            'Constant tensors should be moved explicitly to the IPU, via cpu_tensor.to("ipu"). '
            f"It is used in module '{scope or 'model'}' and was made outside the model, or in forward by a "
            "constructor such as torch.LongTensor or torch.from_numpy: make it with torch.tensor(...), register it "
            "as a parameter or buffer, or pass it as an input. (Layers kept in a plain Python list are not "
            "registered: use torch.nn.ModuleList.)"
        )


def storage_key(tensor: Tensor) -> int:
    """Return a key that a tensor shares with its views: its memory, or its identity if it is sparse."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage().data_ptr() or id(tensor)


def _attributes(module: nn.Module) -> Iterable[Tensor]:
    for child in module.modules():
        for name, value in vars(child).items():
            if name not in REGISTRIES:
                yield from _tensors_in(value, _DEEPEST)
        for registry in TENSOR_REGISTRIES:
            yield from filter(is_sparse, vars(child)[registry].values())


def _tensors_in(value: Any, depth: int) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    elif isinstance(value, _OBJECTS) or hasattr(type(value), "__dataclass_fields__"):
        parts = list(getattr(value, "__dict__", {}).values())
    for part in parts if depth else ():
        yield from _tensors_in(part, depth - 1)
