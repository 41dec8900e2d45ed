"""The host: what it does for each call, how long that takes, and how much of it overlaps with the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ipu_model.errors import Error
from ipu_model.predict.program import Program


class Loading(str, Enum):
    SYNC = "sync"
    ASYNC = "async"


_LEAST = {"seconds_per_sample": 0, "seconds_per_call": 0, "workers": 0, "hosts": 1, "cores_per_host": 0}


@dataclass(frozen=True)
class HostWork:
    """The program's own work on the host, in seconds; `source` says whether the times are measured or modelled.

    `seconds_per_sample` is the time that one worker takes to load and prepare one sample; `seconds_per_call` is the
    other work of the program's loop for each call (metrics, progress bars). With `workers=0` the process itself loads
    the data. Processes are spread evenly over `hosts`; `cores_per_host` are the processor cores that the loaders of one
    host share, 0 for as many as there are loaders. The default is a program whose data costs nothing.
    Raises `Error` for a negative time or count, or no host.
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

    def __str__(self) -> str:
        if not self.seconds_per_sample and not self.seconds_per_call:
            return f"no work on the host ({self.source})"
        who = f"each of {self.workers} workers" if self.workers > 1 else "1 worker" if self.workers else "the program"
        when = "while the device works" if self.loads_ahead else "between two calls"
        cores = f" on {self.cores_per_host} cores" if self.cores_per_host else ""
        call = f"; {self.seconds_per_call * 1e3:.3g} ms of other work for each call" if self.seconds_per_call else ""
        hosts = f"; {self.hosts} hosts" if self.hosts > 1 else ""
        loading = f"{self.seconds_per_sample * 1e3:.3g} ms for {who}{cores} to load a sample, {when}"
        return f"{loading}{call}{hosts} ({self.source})"

    @property
    def loads_ahead(self) -> bool:
        """Whether loading overlaps with the device: an asynchronous loader, or one with worker processes."""
        return self.loading is Loading.ASYNC or self.workers > 0


@dataclass(frozen=True)
class CallTime:
    """Seconds of one call; with `overlaps`, loading runs in parallel, and the slower of both is the bottleneck."""

    loader: float
    host: float
    device: float
    overlaps: bool

    @property
    def total(self) -> float:
        """Seconds between the starts of two consecutive calls in the steady state."""
        rest = self.host + self.device
        return max(self.loader, rest) if self.overlaps else self.loader + rest

    @property
    def bottleneck(self) -> str | None:
        """What takes longest if that is not the device; a loader that overlaps must take longer than all the rest."""
        rest = self.host + self.device if self.overlaps else max(self.host, self.device)
        return "host loader" if self.loader > rest else "host call" if self.host > self.device else None


def call_time(program: Program, host: HostWork, device_seconds: float) -> CallTime:
    """Return the time of one call whose device part takes `device_seconds`.

    A process loads samples once for replicas that share their input; workers of torch's `DataLoader` load ahead in
    either mode. Loaders that are more than a host has cores share these.
    """
    samples, workers = program.samples_per_micro_batch * program.batching.slices, max(1, host.workers)
    loaders = math.ceil(program.processes / host.hosts) * workers
    slowdown = max(1.0, loaders / host.cores_per_host) if host.cores_per_host else 1.0
    loader = samples * host.seconds_per_sample / workers * slowdown
    per_call = program.calibration.host.call_seconds + host.seconds_per_call
    return CallTime(loader, per_call, device_seconds, host.loads_ahead)
