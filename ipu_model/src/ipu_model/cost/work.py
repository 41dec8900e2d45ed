"""The results of costing: cycles by kind, and everything else that one op takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cycles:
    """Tile-clock cycles of one op: computing (OnTileExecute) and exchanging (DoExchange), never overlapping.

    `phases` is how many exchange phases there are; each is preceded by a synchronisation of all tiles
    (InternalSync), whose length is `Device.sync_cycles`.
    """

    compute: float = 0.0
    exchange: float = 0.0
    phases: int = 0

    def __add__(self, other: Cycles) -> Cycles:
        return Cycles(self.compute + other.compute, self.exchange + other.exchange, self.phases + other.phases)

    def times(self, count: int) -> Cycles:
        """Return the cycles of doing this `count` times, one after another."""
        return Cycles(self.compute * count, self.exchange * count, self.phases * count)


@dataclass(frozen=True)
class Work:
    """What one op takes on its IPU.

    `temporary_bytes` is what it needs besides its inputs and outputs on the busiest tile while it runs;
    `flops` counts multiplications and additions of contractions only, as `torch.utils.flop_counter` does;
    `outputs_on_busiest_tile` is how many elements of its result the fullest tile holds. `plan` says how a
    contraction was split, or is empty. `repeats` is how many equal rounds the cycles consist of: a loop on the
    device, whose code exists once.
    """

    family: str
    cycles: Cycles = Cycles()
    temporary_bytes: float = 0.0
    flops: int = 0
    outputs_on_busiest_tile: float = 0.0
    plan: str = ""
    repeats: int = 1

    def times(self, count: int) -> Work:
        """Return the work of doing this `count` times in sequence; results pile up, temporaries do not."""
        outputs = self.outputs_on_busiest_tile * count
        return replace(self, cycles=self.cycles.times(count), flops=self.flops * count, outputs_on_busiest_tile=outputs)

    def plus(self, cycles: Cycles) -> Work:
        """Return this work with more cycles."""
        return replace(self, cycles=self.cycles + cycles)


FREE = Work("view")


def total(works: Iterable[Work]) -> Cycles:
    """Return the cycles of works that run one after another."""
    summed = Cycles()
    for work in works:
        summed = summed + work.cycles
    return summed
