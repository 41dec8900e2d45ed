"""What a program's options say about the cost of its ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ipu_model.cost.contraction import DEFAULT_PROPORTION
from ipu_model.cost.device import Device
from ipu_model.errors import Error


@dataclass(frozen=True)
class CostSettings:
    """The device, and the options that change what an op costs.

    `half_partials` for matrix products and convolutions in fp16 (`Options.Precision.setPartialsType`);
    `available_memory_proportion` by IPU, 0.6 where nothing is said; `stable_norm` for
    `Options.Precision.enableStableNorm`.

    Raises:
        Error: a proportion that is not between 0 and 1.
    """

    device: Device = field(default_factory=Device)
    half_partials: bool = False
    half_partials_of_convolutions: bool | None = None
    available_memory_proportion: Mapping[int, float] = field(default_factory=dict)
    stable_norm: bool = False

    def __post_init__(self) -> None:
        for ipu, proportion in self.available_memory_proportion.items():
            check_proportion(proportion, f"IPU{ipu}")

    def proportion(self, ipu: int) -> float:
        """Return the share of tile memory for temporary data of one op on `ipu`."""
        return self.available_memory_proportion.get(ipu, DEFAULT_PROPORTION)


def check_proportion(proportion: object, where: str) -> None:
    """Refuse shares of tile memory that no tile has.

    Raises:
        Error: no number between 0 and 1.
    """
    if not isinstance(proportion, (int, float)) or not 0 <= proportion <= 1:
        raise Error(
            f"The available memory proportion of {where} must be between 0 and 1, not {proportion!r}: it is "
            "the share of a tile's memory for temporary data. 0.6 is the default."
        )
