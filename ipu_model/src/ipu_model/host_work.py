"""What the host does for each call: load samples, and hand them over."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ipu_model.errors import Error


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
