"""Moving data between tiles of one IPU: bytes at the tile's rate, and a fixed part."""

from __future__ import annotations

from ipu_model.cost.device import Device
from ipu_model.cost.work import Cycles


def exchange(device: Device, bytes_on_busiest_tile: float, phases: int = 1) -> Cycles:
    """Return the cycles of moving so many bytes into (or out of) the busiest tile, in so many phases."""
    moving = bytes_on_busiest_tile / device.chip.exchange_bytes_per_cycle
    return Cycles(exchange=moving + phases * device.constants.exchange_fixed_cycles, phases=phases)
