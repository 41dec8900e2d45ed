"""Other forms of the network: with inputs in sensible units, and with an op in half precision that needs fp32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ipu_course.lessons.numerics_layer_by_layer.mending_check import mended
from ipu_course.lessons.numerics_layer_by_layer.two_sensors import MOST_COUNTS, MOST_VOLTS, SEED, TwoSensors


class SensibleUnits(TwoSensors):
    """The same network, which divides each sensor's values by the largest, and starts with PyTorch's usual weights."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            self.upper.reset_parameters()
            self.lower.reset_parameters()

    def forward(self, counts: Tensor, volts: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        return super().forward(counts / MOST_COUNTS, volts / MOST_VOLTS, labels)


class UnitLengthOfType(nn.Module):
    """Rows scaled to length 1 in the type that comes in, whatever it is: [N, K] to [N, K]."""

    def forward(self, x: Tensor) -> Tensor:
        length: Tensor = (x * x).sum(1, keepdim=True).sqrt() + 0.001
        return x / length


def mended_but_unit() -> TwoSensors:
    """Return the mended network, with ``UnitLength`` in float16."""
    network = mended()
    network.unit = UnitLengthOfType()
    return network
