"""What the drawings say about the hardware: a Mk2 IPU (GC200) and the IPU-M2000 that carries four of them.

With the IPU Model installed the numbers are the ones that it computes with. Elsewhere they come from the table below,
which a test compares with the IPU Model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ipu_course import engine

SYSTEM = "M2000"


@dataclass(frozen=True)
class Hardware:
    """One IPU-M2000 with its host: sizes in bytes, rates in bytes per second and direction, the clock in Hz."""

    tiles: int
    tile_bytes: int
    threads: int
    clock_hz: float
    exchange_bytes_per_cycle: float
    sync_cycles: int
    ipus: int
    link_bytes_per_second: float
    host_bytes_per_second: float
    streaming_bytes: float

    @property
    def chip_bytes(self) -> int:
        """The memory of all tiles of one IPU."""
        return self.tiles * self.tile_bytes

    @property
    def chip_threads(self) -> int:
        """The worker threads of one IPU."""
        return self.tiles * self.threads


WITHOUT_IPU_MODEL = Hardware(
    tiles=1472,  # PopVision's summaries of published Mk2 runs
    tile_bytes=638_976,  # 624 KiB: Memory and Performance Optimisation on the IPU, chapter 6
    threads=6,  # IPU Programmer's Guide
    clock_hz=1.33e9,  # MLPerf Training v1.1, system files
    exchange_bytes_per_cycle=4,  # a tile in each direction: PopLibs, ExchangeEstimator
    sync_cycles=126,  # Target::getMaxIPUSyncDelay
    ipus=4,  # IPU-M2000 datasheet
    link_bytes_per_second=160e9,  # 10 IPU-Links of 16 GB/s each way
    host_bytes_per_second=14.55e9,  # to the device: gc-hosttraffictest on one M2000
    streaming_bytes=128e9,  # 2 x 64 GB of DDR4: Direct Attach build guide
)


@lru_cache(maxsize=1)
def hardware() -> Hardware:
    """Return the numbers of the IPU Model, or those of the table above where there is none."""
    if not engine.is_available():
        return WITHOUT_IPU_MODEL
    system = engine.machine(SYSTEM)
    chip = system.chip
    return Hardware(
        tiles=chip.tiles,
        tile_bytes=chip.tile_bytes,
        threads=chip.workers,
        clock_hz=chip.clock_hz,
        exchange_bytes_per_cycle=chip.exchange_bytes_per_cycle,
        sync_cycles=chip.max_sync_cycles,
        ipus=system.ipus,
        link_bytes_per_second=system.link_bytes_per_second,
        host_bytes_per_second=system.host_to_device_bytes_per_second,
        streaming_bytes=system.streaming_bytes,
    )
