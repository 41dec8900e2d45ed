"""Explorer of lesson 04: what the type of the images and the work on the host make of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

import poptorch
from ipu_course import engine, ladder
from ipu_course.explorers.controls import Choice, Control, Slider
from ipu_course.explorers.explorer import View, explore
from ipu_course.ladder import published_ladder
from ipu_course.lessons.eight_bit_io.call_parts_figure import call_parts_figure
from ipu_course.views.call import CallParts, call_parts

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

REFERENCE = "the hands-on before this step"
CHOSEN = "your settings"
HOST_MS = (0.0, 0.02, 0.05, 0.1, 0.18, 0.4, 0.8, 1.6)
CONTROLS: dict[str, Control] = {
    "images": Choice("images are", {"fp32": "fp32", "fp16": "fp16", "uint8": "uint8"}, "uint8"),
    "host_ms": Slider("host, ms an image", HOST_MS, 0.18),
    "loading": Choice("loading", {"before the call (Sync)": False, "beside the call (Async)": True}, False),
    "accumulation": Slider("gradient accumulation", (2, 3, 8, 16, 32), 8),
    "iterations": Slider("device iterations", (1, 2, 4, 8, 16), 4),
}


def explore_io(programs: Mapping[str, ModelledModule | None]) -> None:
    """Show the explorer; ``programs`` are the lesson's captured programs "fp32", "fp16" and "uint8"."""
    explore(CONTROLS, IoView(programs).view)


class IoView:
    """The explorer's view over captured programs; the hands-on's own call stands beside it."""

    def __init__(self, programs: Mapping[str, ModelledModule | None]) -> None:
        self._programs = programs
        self._reference: CallParts | None = None

    def view(self, images: str, host_ms: float, loading: bool, accumulation: int, iterations: int) -> View:
        """The call with these settings, taken apart, or why there is none."""
        program, before = self._programs[images], self._programs["fp16"]
        if not program or not before:
            return View(text=f"This explorer shows modelled calls: {engine.NONE_HERE}.")
        per_call = published_ladder().host.seconds_per_call
        host = engine.host_work(host_ms / 1000, per_call, loading, 0, "the explorer's setting")
        changes = {"gradient_accumulation": accumulation, "device_iterations": iterations}
        try:
            profile = program.profile(host=host, **changes)
        except poptorch.Error as refused:
            return View(text=f"PopTorch refuses this: {refused}")
        if self._reference is None:
            self._reference = call_parts(before.profile(host=ladder.host()))
        return _view(self._reference, profile)


def _view(reference: CallParts, profile: Profile) -> View:
    parts = call_parts(profile)
    drawn = call_parts_figure({REFERENCE: reference, CHOSEN: parts}, "The time of a call, modelled")
    epoch = ladder.epoch_seconds(profile)
    row: dict[str, object] = {
        "images a call": f"{profile.samples_per_call:,}",
        "load": f"{1000 * parts.load:,.1f} ms",
        "call": f"{1000 * parts.call:,.1f} ms",
        "stream": f"{1000 * parts.stream:,.1f} ms",
        "compute": f"{1000 * parts.compute:,.1f} ms",
        "images a second": f"{profile.samples_per_second:,.0f}",
        "an epoch": "does not fit" if epoch is None else f"{epoch:.1f} s",
        "limited by": profile.limited_by if engine.may_run(profile) else "memory",
    }
    words = (
        f"A call with your settings: loading {row['load']}, the call on the host {row['call']}, stream "
        f"{row['stream']}, computing {row['compute']}; in all {1000 * parts.total:,.0f} ms. Above it, the "
        f"hands-on's call with fp16 images: {1000 * reference.total:,.0f} ms. All modelled."
    )
    return View(drawn, description=words, rows=[row])
