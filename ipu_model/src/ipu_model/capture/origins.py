"""Which real tensors a trace may use: those that the module itself holds. All others stay on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ipu_model.capture.variables import Slot
from ipu_model.errors import Error

_REGISTRIES = ("_parameters", "_buffers", "_modules")


class Origins:
    """Tells the tensors that become constants of a program from those that never reach the device."""

    def __init__(self, module: nn.Module, slots: Sequence[Slot]) -> None:
        self._weights = {id(slot.tensor): slot.names[0] for slot in slots if not slot.is_constant}
        self._held = [*_attributes(module), *(slot.tensor for slot in slots if slot.is_constant)]
        self._constants = {id(tensor) for tensor in self._held} - self._weights.keys()

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether the module holds `tensor`, as a plain attribute or as an integer parameter or buffer."""
        return id(tensor) in self._constants

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether `tensor` is a parameter or buffer whose stand-in should have been met instead."""
        return id(tensor) in self._weights

    def adopt(self, tensor: Tensor) -> None:
        """Note that forward has moved `tensor` to the device."""
        self._held.append(tensor)
        self._constants.add(id(tensor))

    def refuse(self, tensor: Tensor, scope: str) -> Error:
        """Return the error for a real tensor that meets tensors of the device in module `scope`."""
        weight = self._weights.get(id(tensor))
        if weight is not None:
            return Error(
                f"'{weight}' is used through a reference kept outside the module's registered parameters and "
                "buffers, so the device would never see its updates. Use it as an attribute of its module."
            )
        return Error(
            f"Expected an IPU tensor but got tensor(device=cpu, dtype={tensor.dtype}, "
            f"shape={list(tensor.shape)}) in module '{scope or 'model'}'. It was made outside the model, or "
            "in forward by a constructor such as torch.LongTensor or torch.from_numpy. Make it in forward "
            "with torch.tensor(...), move it with .to(x.device), register it as a parameter or buffer, or "
            "pass it as an input. (Layers kept in a plain Python list are not registered: use "
            "torch.nn.ModuleList.)"
        )


def _attributes(module: nn.Module) -> Iterable[Tensor]:
    """Yield the tensors among the plain attributes of a module tree, also inside lists, tuples and dicts."""
    for child in module.modules():
        for name, value in vars(child).items():
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, (list, tuple, dict)) and name not in _REGISTRIES:
                yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
