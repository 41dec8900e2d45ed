"""The host: what it does for each call, how long that takes, and what of it the device's work hides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ipu_model.errors import Error
from ipu_model.predict.program import Program


class Loading(str, Enum):
    """Whether the host loads the next batch after a call has ended, or while it runs."""

    SYNC = "sync"
    ASYNC = "async"


_LEAST = {"seconds_per_sample": 0, "seconds_per_call": 0, "workers": 0, "hosts": 1, "cores_per_host": 0}


@dataclass(frozen=True)
class HostWork:
    """The program's own work on the host, in seconds; `source` says whether they are measured or modelled.

    `seconds_per_sample` is what one worker needs to load and prepare one sample, `seconds_per_call` what the
    program's loop does for each call besides (metrics, progress bars). `workers` of 0 means that the process
    itself loads. Processes are dealt out evenly over `hosts`; `cores_per_host` are the processor cores that the
    loaders of one host share, 0 for as many as there are loaders. The default is a program whose data costs nothing.

    Raises:
        Error: negative times or counts, no host.
    """

    seconds_per_sample: float = 0.0
    seconds_per_call: float = 0.0
    loading: Loading = Loading.SYNC
    workers: int = 0
    source: str = "no loader described"
    hosts: int = 1
    cores_per_host: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < least:
                raise Error(f"HostWork.{name} cannot be {value!r}: it must be a finite number, not below {least}.")
        object.__setattr__(self, "loading", Loading(self.loading))


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
    per_call = program.calibration.host.call_seconds + host.seconds_per_call
    return CallTime(loader, per_call, device_seconds, host.loading is Loading.ASYNC or host.workers > 0)


def turns_on_cores(program: Program, host: HostWork) -> float:
    """Return the loaders of the busiest host for each of its cores, at least 1: so much longer each of them takes.

    A host runs ceil(processes / hosts) processes, each with its workers, or with one loader: itself.
    """
    loaders = math.ceil(program.processes / host.hosts) * max(1, host.workers)
    return max(1.0, loaders / host.cores_per_host) if host.cores_per_host else 1.0
