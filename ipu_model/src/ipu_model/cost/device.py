"""What formulas are evaluated for: a chip with calibrated constants, and kinds of elements."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from ipu_model.cost.calibration import Constants, calibrated
from ipu_model.cost.work import Cycles
from ipu_model.hardware import Chip, machine
from ipu_model.step import DType


class Element(Enum):
    """What a tensor element is to a tile: the vector unit knows two kinds, the rest is scalar work."""

    HALF = "half"
    FLOAT = "float"
    INT = "int"
    BYTE = "byte"

    @property
    def bytes(self) -> int:
        """Bytes of one element on the device."""
        return _BYTES[self]

    @property
    def is_floating(self) -> bool:
        """Whether the vector unit works on it."""
        return self in (Element.HALF, Element.FLOAT)

    @classmethod
    def of(cls, dtype: DType) -> Element:
        """Return the kind of elements of `dtype`; 64-bit types are 32-bit ones on the device."""
        if dtype.is_floating and dtype.bytes == 2:
            return cls.HALF
        if dtype.is_floating or dtype.is_complex:
            return cls.FLOAT
        return cls.BYTE if dtype.bytes == 1 else cls.INT


_BYTES = {Element.HALF: 2, Element.FLOAT: 4, Element.INT: 4, Element.BYTE: 1}


@dataclass(frozen=True)
class Device:
    """A chip with the constants of `data/calibration.toml` (or others, to see what they do)."""

    chip: Chip = field(default_factory=lambda: machine("GC200").chip)
    constants: Constants = field(default_factory=calibrated)

    @property
    def sync_cycles(self) -> float:
        """Cycles that all tiles wait for each other before an exchange phase."""
        return self.constants.sync_cycles

    def width(self, element: Element) -> int:
        """Return how many elements one vector instruction handles; integers are handled one by one."""
        return self.chip.vector_width(element.bytes) if element.is_floating else 1

    def total(self, cycles: Cycles) -> float:
        """Return all cycles of `cycles`, synchronisation included."""
        return cycles.compute + cycles.exchange + cycles.phases * self.sync_cycles

    def spread(self, elements: int, element: Element) -> int:
        """Return the elements on the busiest tile of a tensor that is laid out evenly over the tiles.

        A tile holds no less than a grain of it, so small tensors sit on few tiles.
        """
        grain = math.ceil(self.constants.least_bytes_per_tile / element.bytes)
        return min(elements, max(grain, math.ceil(elements / self.chip.tiles)))
