"""What can limit a program, in this lesson's words, and how much a mend of that part can bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipu_course.engine import Profile

LOADER, HOST_CALL, STREAM, STAGE = "loader", "host call", "stream", "stage"
RAMPS, COPIES, UPDATE, START = "ramps", "copies", "update", "start"
WORDS = (LOADER, HOST_CALL, START, STREAM, f"{STAGE} 0", RAMPS, COPIES, UPDATE)
OF_THE_ENGINE = {
    "host loader": LOADER,
    "host call": HOST_CALL,
    "run start": START,
    "stream": STREAM,
    "pipeline fill and flush": RAMPS,
    "inter-IPU copy": COPIES,
    "weight update": UPDATE,
}
ALSO = {
    "loading": LOADER,
    "call": HOST_CALL,
    "start of a call": START,
    "streams": STREAM,
    "fill and flush": RAMPS,
    "ramp": RAMPS,
    "copy": COPIES,
}
MILLISECONDS = 1000.0


def limit_of(profile: Profile) -> str:
    """Return what limits a program, in this lesson's words."""
    return OF_THE_ENGINE.get(profile.limited_by, profile.limited_by)


def as_limit(answer: object) -> str | None:
    """Return a learner's word for a limit as this lesson writes it, or ``None`` for other words."""
    word = _plain(answer)
    word = {**{_plain(name): word for name, word in OF_THE_ENGINE.items()}, **ALSO}.get(word, word)
    number = word.removeprefix(STAGE).strip()
    if word.startswith(STAGE) and number.isdigit():
        return f"{STAGE} {int(number)}"
    return word if word in WORDS else None


def _plain(answer: object) -> str:
    return " ".join(str(answer).lower().replace("_", " ").replace("-", " ").split())


@dataclass(frozen=True)
class CallSeconds:
    """The seconds of one call by part: ``loader`` beside the rest, ``host`` once, and the parts on the device."""

    loader: float
    host: float
    passes: float
    ramps: float
    stream: float
    copies: float
    update: float
    start: float
    total: float

    def of(self, limit: str) -> float:
        """Return the seconds of a limit in this lesson's words."""
        parts = {
            LOADER: self.loader,
            HOST_CALL: self.host,
            START: self.start,
            STREAM: self.stream,
            RAMPS: self.ramps,
            COPIES: self.copies,
            UPDATE: self.update,
        }
        return parts.get(limit, self.passes)


def call_seconds(profile: Profile) -> CallSeconds:
    """Return what the time of a call is spent on."""
    device, shares = profile.device_seconds_per_call, profile.shares
    loader = sum(span.seconds for span in profile.timeline if span.kind == "load")
    return CallSeconds(
        loader=loader,
        host=profile.host_seconds_per_call - loader,
        passes=device * shares["main"],
        ramps=device * shares["fill and flush"],
        stream=device * shares["stream"],
        copies=device * (shares["copy"] + shares["sync"]),
        update=device * (shares["update"] + shares["collective"] + shares["offload"]),
        start=device * shares["run start"],
        total=profile.call_seconds,
    )


def most_gained(profile: Profile, limit: str) -> float:
    """Return how many times as fast a program were if the part that limits it took no time at all.

    For a loader that loads ahead, the rest of the call is left; for other parts, the call without them.
    """
    seconds = call_seconds(profile)
    rest = profile.device_seconds_per_call + seconds.host
    if limit == LOADER:
        return seconds.total / rest
    return seconds.total / max(rest - seconds.of(limit), seconds.loader if profile.host.loads_ahead else 0.0)
