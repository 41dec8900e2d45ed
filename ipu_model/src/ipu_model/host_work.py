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


@dataclass(frozen=True)
class HostWork:
    """The program's own work on the host, in seconds; `source` says whether they are measured or modelled.

    `seconds_per_sample` is what one worker needs to load and prepare one sample, `seconds_per_call` what the
    program's loop does for each call besides (metrics, progress bars). `workers` of 0 means that the process
    itself loads. The default is a program whose data costs nothing.

    Raises:
        Error: negative times or counts.
    """

    seconds_per_sample: float = 0.0
    seconds_per_call: float = 0.0
    loading: Loading = Loading.SYNC
    workers: int = 0
    source: str = "no loader described"

    def __post_init__(self) -> None:
        for name in ("seconds_per_sample", "seconds_per_call", "workers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise Error(f"HostWork.{name} cannot be {value!r}: it must be a finite number, not below 0.")
        object.__setattr__(self, "loading", Loading(self.loading))
