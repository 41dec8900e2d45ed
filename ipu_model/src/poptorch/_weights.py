"""The host's copy of a model's weights: which tensors they are, and how values travel to and from the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ipu_model.capture.variables import slots_of


@dataclass
class HostVersion:
    """Counts changes of the host's weights that came from the device or were asked to go there."""

    number: int = 0


class HostWeights:
    """The parameters and buffers of a module, by the name of their device variable."""

    def __init__(self, module: nn.Module) -> None:
        slots = slots_of(module)
        self.tensors: list[Tensor] = [slot.tensor for slot in slots]
        self.values: dict[str, Tensor] = {slot.names[0]: slot.tensor for slot in slots if not slot.is_constant}

    def store(self, values: Mapping[str, Tensor]) -> None:
        """Copy device values into the host's tensors, in place, so that every reference to them sees it."""
        with torch.no_grad():
            for name, tensor in self.values.items():
                if name in values:
                    tensor.copy_(values[name])
