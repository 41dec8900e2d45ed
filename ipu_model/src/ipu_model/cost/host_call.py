"""An op that the host computes in the middle of a program: operands go to the host, results come back.

The IPU stops meanwhile. How long the host takes to compute is not modelled: it depends on the function and the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.cost.device import Device
from ipu_model.cost.work import Cycles, Work


@dataclass(frozen=True)
class HostLink:
    """Rates in bytes per second and a wait in seconds, as in section `stream` of `data/calibration.toml`."""

    ipu_bytes_per_second: float
    refill_bytes_per_second: float
    completion_bytes_per_second: float
    run_wait_seconds: float


def host_call(device: Device, link: HostLink, sent: float, received: float) -> Work:
    """Return the work of sending bytes to the host, waiting for it once, and receiving bytes."""
    seconds = link.run_wait_seconds + (sent + received) / link.ipu_bytes_per_second
    seconds += sent / link.completion_bytes_per_second + received / link.refill_bytes_per_second
    return Work("host call", Cycles(exchange=seconds * device.chip.clock_hz))
