"""One IPU as the cost formulas see it, and the work they describe: cycles, memory and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from ipu_model.errors import Error
from ipu_model.predict.calibration import Calibration, CostConstants, calibrated
from ipu_model.predict.hardware import Chip, chip
from ipu_model.step import DType

DEFAULT_PROPORTION = 0.6
"""PopLibs' default share of tile memory for the temporary data of one convolution or matrix product."""


class Element(Enum):
    """The kind of a tensor element on a tile: the vector unit handles fp16 and fp32, all else is scalar work."""

    HALF = ("half", 2)
    FLOAT = ("float", 4)
    INT = ("int", 4)
    BYTE = ("byte", 1)

    def __init__(self, kind: str, size: int) -> None:
        self.bytes, self.is_floating = size, kind in ("half", "float")

    @classmethod
    def of(cls, dtype: DType) -> Element:
        """Return the kind of element for `dtype`; 64-bit types become 32-bit types on the device."""
        if dtype.is_floating and dtype.bytes == 2:
            return cls.HALF
        if dtype.is_floating or dtype.is_complex:
            return cls.FLOAT
        return cls.BYTE if dtype.bytes == 1 else cls.INT


@dataclass(frozen=True)
class Cycles:
    """Tile cycles that compute, and that exchange in `phases`, before each of which all tiles synchronise."""

    compute: float = 0.0
    exchange: float = 0.0
    phases: int = 0

    def __add__(self, other: Cycles) -> Cycles:
        return Cycles(self.compute + other.compute, self.exchange + other.exchange, self.phases + other.phases)

    def times(self, count: int) -> Cycles:
        return Cycles(self.compute * count, self.exchange * count, self.phases * count)


@dataclass(frozen=True)
class Work:
    """The work of one op, or of one part of it, on its IPU; `family` is its kind, as profiles show it.

    `temporary_bytes` are on the busiest tile; `flops` are of contractions only, as `torch.utils.flop_counter` counts
    them. `repeats` equal rounds form a loop, whose code exists once.
    """

    family: str
    cycles: Cycles = Cycles()
    temporary_bytes: float = 0.0
    flops: int = 0
    outputs_on_busiest_tile: float = 0.0
    plan: str = ""
    repeats: int = 1

    def times(self, count: int) -> Work:
        """Return the work of doing this `count` times in sequence; results add up, temporary memory is reused."""
        outputs = self.outputs_on_busiest_tile * count
        return replace(self, cycles=self.cycles.times(count), flops=self.flops * count, outputs_on_busiest_tile=outputs)

    def plus(self, cycles: Cycles) -> Work:
        return replace(self, cycles=self.cycles + cycles)


@dataclass(frozen=True)
class Device:
    """A chip and its calibrated constants: those of `data/calibration.toml` unless you pass others."""

    chip: Chip = field(default_factory=lambda: chip("GC200"))
    calibration: Calibration = field(default_factory=calibrated)

    def __hash__(self) -> int:
        # Plans are cached by device, and hashing the dozens of numbers of a calibration at each look-up would be slow.
        return hash((self.chip.name, self.chip.tiles, self.constants))

    @property
    def constants(self) -> CostConstants:
        return self.calibration.cost

    @property
    def sync_cycles(self) -> float:
        return self.constants.sync_cycles

    def width(self, element: Element) -> int:
        """Return how many elements one vector instruction handles; integers are handled one by one."""
        return self.chip.vector_width(element.bytes) if element.is_floating else 1

    def exchange(self, bytes_on_busiest_tile: float, phases: int = 1) -> Cycles:
        """Return the cycles to move this many bytes into (or out of) the busiest tile, in this many phases."""
        moving = bytes_on_busiest_tile / self.chip.exchange_bytes_per_cycle
        return Cycles(exchange=moving + phases * self.constants.exchange_fixed_cycles, phases=phases)

    def total(self, cycles: Cycles) -> float:
        return cycles.compute + cycles.exchange + cycles.phases * self.sync_cycles

    def spread(self, elements: int, element: Element) -> int:
        """Return the elements on the busiest tile of a tensor laid out evenly, at least one grain a tile."""
        grain = math.ceil(self.constants.least_bytes_per_tile / element.bytes)
        return min(elements, max(grain, math.ceil(elements / self.chip.tiles)))


@dataclass(frozen=True)
class CostSettings:
    """The device, and the program options that change the cost of an op; memory proportions are by IPU."""

    device: Device = field(default_factory=Device)
    half_partials: bool = False
    half_partials_of_convolutions: bool | None = None
    available_memory_proportion: Mapping[int, float] = field(default_factory=dict)
    stable_norm: bool = False

    def __post_init__(self) -> None:
        for ipu, proportion in self.available_memory_proportion.items():
            check_proportion(proportion, f"IPU{ipu}")

    def proportion(self, ipu: int) -> float:
        return self.available_memory_proportion.get(ipu, DEFAULT_PROPORTION)


def check_proportion(proportion: object, where: str) -> None:
    if not isinstance(proportion, (int, float)) or not 0 <= proportion <= 1:
        raise Error(
            f"The available memory proportion of {where} must be between 0 and 1, not {proportion!r}: it is "
            "the share of a tile's memory for temporary data. 0.6 is the default."
        )
