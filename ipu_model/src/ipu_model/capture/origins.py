"""Decide what happens to each real tensor that forward uses, according to where it comes from.

As in PopTorch, a plain tensor attribute of a module stays on the host. Ops that use only such tensors run at once,
in Python's order, and change them permanently. If an op also uses tensors of the device, the device gets the
attribute's current value as a constant. After the device has written to it, it stays on the device for the rest of the
trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform

from ipu_model.capture.variables import REGISTRIES, TENSOR_REGISTRIES, Slot, is_sparse
from ipu_model.errors import Error

_OBJECTS = (Distribution, Transform, SimpleNamespace)
_DEEPEST = 6


class Origins:
    """Distinguishes a module's variables, constants and host tensors from tensors that it does not hold."""

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

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether `tensor` is a parameter or buffer that should have a stand-in here, or a view of a trained one."""
        return self._weight(tensor) is not None

    def _weight(self, tensor: Tensor) -> str | None:
        return self._weights.get(id(tensor)) or self._trained.get(storage_key(tensor))

    def hold(self, tensor: Tensor) -> None:
        """Note that `tensor` belongs to the module, on the host."""
        self._kept.append(tensor)
        self._held.add(storage_key(tensor))
        self.holds_sparse |= tensor.layout is not torch.strided

    def adopt(self, tensor: Tensor) -> None:
        """Note that forward has moved `tensor` to the device."""
        self._kept.append(tensor)
        self._constants.add(id(tensor))

    def refuse(self, tensor: Tensor, scope: str) -> Error:
        """Return the error for a real tensor that meets tensors of the device in module `scope`."""
        weight = self._weight(tensor)
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
    """Yield the tensors among the plain attributes of a module tree, sparse buffers and parameters among them.

    This includes tensors inside lists, tuples, dicts, data classes, namespaces and distributions of torch.
    """
    for child in module.modules():
        for name, value in vars(child).items():
            if name not in REGISTRIES:
                yield from _tensors_in(value, _DEEPEST)
        for registry in TENSOR_REGISTRIES:
            yield from filter(is_sparse, vars(child)[registry].values())


def _tensors_in(value: Any, depth: int) -> Iterable[Tensor]:
    """Yield the tensors in nested containers and objects, at most `depth` levels deep."""
    if isinstance(value, Tensor):
        yield value
    elif depth:
        for part in _parts(value):
            yield from _tensors_in(part, depth - 1)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, _OBJECTS) or hasattr(type(value), "__dataclass_fields__"):
        return list(getattr(value, "__dict__", {}).values())
    return ()
