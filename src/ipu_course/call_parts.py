"""The seconds of a modelled call by what they are spent on: loading, other host work, streams, computing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipu_course import engine

if TYPE_CHECKING:
    from ipu_course.engine import Profile

LOADING = "load"


@dataclass(frozen=True)
class CallParts:
    """Seconds of one call: ``load`` and ``call`` on the host, ``stream`` and ``compute`` on the IPUs.

    ``call`` is the work of the call itself and of the training loop, ``stream`` the IPUs' transfers from and to the
    host, and ``compute`` everything else that the IPUs do. ``overlaps`` means that loading runs during the rest.
    """

    load: float
    call: float
    stream: float
    compute: float
    overlaps: bool

    @property
    def device(self) -> float:
        """Seconds of the call on the IPUs."""
        return self.stream + self.compute

    @property
    def rest(self) -> float:
        """Seconds of all but the loading."""
        return self.call + self.device

    @property
    def total(self) -> float:
        """Seconds between the starts of two calls."""
        return max(self.load, self.rest) if self.overlaps else self.load + self.rest


@engine.needs_the_model
def call_parts(profile: Profile) -> CallParts:
    """Return the parts of a profile's call; ``load`` is what all loader workers together need for one call."""
    load = sum(span.seconds for span in profile.timeline if span.kind == LOADING)
    stream = profile.shares["stream"] * profile.device_seconds_per_call
    return CallParts(
        load=load,
        call=profile.host_seconds_per_call - load,
        stream=stream,
        compute=profile.device_seconds_per_call - stream,
        overlaps=profile.host.loads_ahead,
    )
