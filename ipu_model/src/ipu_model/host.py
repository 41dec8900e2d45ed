"""Time of a call on the host: loading samples, the call itself, and what of it the device's work hides."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipu_model.constants import Section, values
from ipu_model.host_work import HostWork, Loading
from ipu_model.program import Program


@dataclass(frozen=True)
class HostConstants(Section):
    """Section `host` of `data/calibration.toml`."""

    call_seconds: float


def host_constants() -> HostConstants:
    """Return the constants of `data/calibration.toml`."""
    return values("host", HostConstants)


@dataclass(frozen=True)
class CallTime:
    """Seconds of one call: `loader` and `host` on the host, `device` on the device, `total` from end to end.

    `overlaps` tells that loading runs beside the rest, so that the slower of the two decides.
    """

    loader: float
    host: float
    device: float
    overlaps: bool

    @property
    def total(self) -> float:
        """Seconds between the starts of two calls, one after another, in the steady state."""
        rest = self.host + self.device
        return max(self.loader, rest) if self.overlaps else self.loader + rest

    @property
    def waits_for_loader(self) -> bool:
        """Whether loading takes longer than device and call: nothing else speeds the program up then."""
        return self.loader > self.host + self.device

    @property
    def waits_for_host(self) -> bool:
        """Whether the work of the call on the host takes longer than the device's part of it."""
        return self.host > self.device and not self.waits_for_loader


def call_time(program: Program, host: HostWork, device_seconds: float) -> CallTime:
    """Return the time of one call whose device part takes `device_seconds`.

    A process loads its own replicas' samples, once for replicas that share their input. Loading runs beside the device
    with an asynchronous loader, and with worker processes of torch's `DataLoader`, which load ahead in either mode.
    Loaders that outnumber the cores of their host take turns on them.
    """
    samples = program.samples_per_micro_batch * program.batching.slices
    loader = samples * host.seconds_per_sample / max(1, host.workers) * turns_on_cores(program, host)
    per_call = host_constants().call_seconds + host.seconds_per_call
    return CallTime(loader, per_call, device_seconds, host.loading is Loading.ASYNC or host.workers > 0)


def turns_on_cores(program: Program, host: HostWork) -> float:
    """Return the loaders of the busiest host for each of its cores, at least 1: so much longer each of them takes.

    A host runs ceil(processes / hosts) processes, each with its workers, or with one loader: itself.
    """
    loaders = math.ceil(program.processes / host.hosts) * max(1, host.workers)
    return max(1.0, loaders / host.cores_per_host) if host.cores_per_host else 1.0
