"""The seconds of an epoch by what they are spent on: loading, the calls and the IPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from ipu_course import engine, show
from ipu_course.call_parts import call_parts
from ipu_course.figures.bars import bars_figure
from ipu_course.ladder import published_ladder

if TYPE_CHECKING:
    from ipu_course.engine import Profile

LOADING, CALLS, IPUS = "loading the images", "work of the calls", "work of the IPUs"


def epoch_parts(profile: Profile) -> dict[str, float]:
    """Return the modelled seconds of an epoch over CIFAR-10's 50,000 training images, by what they are spent on.

    Incomplete calls are left out. The parts overlap when the loader runs while the IPUs work.
    """
    calls = published_ladder().training_images // profile.samples_per_call
    parts = call_parts(profile)
    return {LOADING: calls * parts.load, CALLS: calls * parts.call, IPUS: calls * parts.device}


def show_epoch_parts(profiles: Mapping[str, Profile | None], takeaway: str | None = None) -> None:
    """Show the parts of an epoch of each program, by its name: bars, and a table with the calls."""
    named = {name: profile for name, profile in profiles.items() if profile}
    if not named:
        print(engine.NOT_HERE)
        return
    parts = {name: epoch_parts(profile) for name, profile in named.items()}
    labels = [LOADING, CALLS, IPUS]
    drawn = bars_figure(
        labels,
        {name: [part[label] for label in labels] for name, part in parts.items()},
        "seconds an epoch (modelled)",
        "What the seconds of an epoch are spent on",
        form="{:.1f} s",
    )
    words = "; ".join(
        f"{name}: {', '.join(f'{label} {part[label]:.1f} s' for label in labels)}" for name, part in parts.items()
    )
    described = f"Three groups of bars, seconds an epoch (modelled). {words}."
    show.figure(drawn, takeaway or described, described if takeaway else None)
    show.table([_row(name, named[name], part) for name, part in parts.items()], index="program")


def _row(name: str, profile: Profile, parts: Mapping[str, float]) -> dict[str, object]:
    calls = published_ladder().training_images // profile.samples_per_call
    seconds = {label: f"{value:.1f} s" for label, value in parts.items()}
    whole = f"{calls * profile.call_seconds:.1f} s"
    return {"program": name, "calls an epoch": f"{calls:,}", **seconds, "whole epoch": whole}
