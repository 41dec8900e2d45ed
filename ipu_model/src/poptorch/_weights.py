"""The host's copy of a model's weights: which tensors they are, how values go to and from the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ipu_model.capture.variables import slots_of
from ipu_model.graph import Variable
from ipu_model.numerics.replica_groups import ReplicaGroups
from poptorch._errors import createPoptorchError


class HostWeights:
    """The parameters and buffers of a module as they are registered at the moment of each transfer.

    No method brings anything from a device: wrapped tensors are read as plain ones.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        # Parameters of which every group of replicas has its own slice, by name.
        self.groupings: dict[str, ReplicaGroups] = {}

    def tensors(self) -> list[Tensor]:
        """Return all distinct parameters and buffers."""
        with torch._C.DisableTorchFunctionSubclass():
            return [slot.tensor for slot in slots_of(self._module)]

    def values(self, variables: tuple[Variable, ...]) -> dict[str, Tensor]:
        """Return the host's values of device variables, by the variables' names.

        Raises:
            Error: a tensor has another shape than the program was compiled for.
        """
        registered = self._registered()
        found: dict[str, Tensor] = {}
        for variable in variables:
            tensor = registered.get(variable.name)
            if tensor is None:
                continue
            groups = self.groupings.get(variable.name)
            shape = variable.spec.shape if groups is None else (groups.count, *variable.spec.shape)
            if tuple(tensor.shape) != shape:
                raise createPoptorchError(
                    f"'{variable.name}' has shape {list(tensor.shape)}, but the model was compiled for "
                    f"{list(shape)}. Call destroy() on the model first to compile it again."
                )
            found[variable.name] = tensor
        return found

    def store(self, values: Mapping[str, Tensor]) -> None:
        """Copy device values into the host's tensors, in place, so that every reference to them sees it."""
        registered = self._registered()
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for name, value in values.items():
                if name in registered:
                    torch.Tensor.copy_(registered[name], value)

    def _registered(self) -> dict[str, Tensor]:
        """Return plain tensors that share the storage of the registered ones."""
        with torch._C.DisableTorchFunctionSubclass():
            return {name: torch.Tensor.detach(slot.tensor) for slot in slots_of(self._module) for name in slot.names}
