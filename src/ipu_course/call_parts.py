"""What the seconds of a modelled call, and of an epoch of calls, are spent on: loading, other host work, the IPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping

from ipu_course import engine, show
from ipu_course.figures.bars import bars_figure
from ipu_course.ladder import published_ladder

if TYPE_CHECKING:
    from ipu_course.engine import Profile

LOADING = "load"
EPOCH_LABELS = ("loading the images", "work of the calls", "work of the IPUs")


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


@dataclass(frozen=True)
class EpochParts:
    """Seconds of an epoch of ``calls`` calls: ``load`` and ``call`` on the host, ``device`` on the IPUs.

    ``total`` is less than their sum when the loader runs while the IPUs work.
    """

    calls: int
    load: float
    call: float
    device: float
    total: float

    @property
    def labelled(self) -> dict[str, float]:
        """The seconds by the labels under which they are shown."""
        return dict(zip(EPOCH_LABELS, (self.load, self.call, self.device)))


def epoch_parts(profile: Profile) -> EpochParts:
    """Return the modelled parts of an epoch over CIFAR-10's 50,000 training images, without incomplete calls."""
    calls = published_ladder().training_images // profile.samples_per_call
    parts = call_parts(profile)
    return EpochParts(calls, calls * parts.load, calls * parts.call, calls * parts.device, calls * profile.call_seconds)


def show_epoch_parts(profiles: Mapping[str, Profile | None], takeaway: str) -> None:
    """Show the parts of an epoch of each program, by its name: bars, and a table with the calls."""
    parts = {name: epoch_parts(profile) for name, profile in profiles.items() if profile}
    if not parts:
        print(engine.NOT_HERE)
        return
    drawn = bars_figure(
        EPOCH_LABELS,
        {name: list(each.labelled.values()) for name, each in parts.items()},
        "seconds per epoch (modelled)",
        "What the seconds of an epoch are spent on",
        form="{:.1f} s",
    )
    words = "; ".join(
        f"{name}: {', '.join(f'{label} {seconds:.1f} s' for label, seconds in each.labelled.items())}"
        for name, each in parts.items()
    )
    described = f"Three groups of bars, seconds per epoch (modelled). {words}."
    show.figure(drawn, takeaway, described)
    show.table([_row(name, each) for name, each in parts.items()], index="program")


def _row(name: str, parts: EpochParts) -> dict[str, object]:
    seconds = {label: f"{value:.1f} s" for label, value in parts.labelled.items()}
    each = f"{1e3 * parts.call / parts.calls:.0f} ms" if parts.calls else "-"
    whole = f"{parts.total:.1f} s"
    return {
        "program": name,
        "calls per epoch": f"{parts.calls:,}",
        "work of one call": each,
        **seconds,
        "whole epoch": whole,
    }
