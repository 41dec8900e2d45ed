"""Lesson 03's explorer: what device iterations gain, for a program and a host of the learner's choice."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Mapping

from ipu_course import engine
from ipu_course.explorers.controls import Choice, Slider
from ipu_course.explorers.explorer import View, explore
from ipu_course.figures.curves import curves_figure
from ipu_course.figures.style import INK
from ipu_course.views.call import call_parts

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

ITERATIONS = (1, 2, 4, 8, 16, 32, 64, 128)
CALL_MILLISECONDS = (0, 1, 2, 5, 10, 34, 100)
IMAGE_MICROSECONDS = (0, 5, 20, 50, 100, 180, 800)
MODES = {"Final (training default)": "final", "Sum": "sum", "All (inference default)": "all"}
SOURCE = "chosen in the explorer"
NO_RATES = "There is no IPU Model here, so there are no rates to show."


def explore_device_iterations(programs: Mapping[str, ModelledModule | None], program: str | None = None) -> None:
    """Show the explorer of ``programs``, by name; the first one, or ``program``, is shown first.

    Raises ``ValueError`` without programs and for a name that is none of theirs.
    """
    if not programs:
        raise ValueError("the explorer needs at least one program")
    explore(
        {
            "program": Choice("program", {name: name for name in programs}, program or next(iter(programs))),
            "iterations": Slider("device iterations", ITERATIONS, 16),
            "call_milliseconds": Slider("host work for each call, ms", CALL_MILLISECONDS, 1),
            "image_microseconds": Slider("host work for each image, µs", IMAGE_MICROSECONDS, 0),
            "mode": Choice("output mode", MODES, "final"),
        },
        partial(iterations_view, programs),
    )


def iterations_view(
    programs: Mapping[str, ModelledModule | None],
    program: str,
    iterations: int,
    call_milliseconds: float,
    image_microseconds: float,
    mode: str,
) -> View:
    """Images a second over the device iterations, with the chosen one marked."""
    modelled = programs[program]
    if not modelled:
        return View(text=NO_RATES)
    host = engine.host_work(image_microseconds / 1e6, call_milliseconds / 1e3, False, 0, SOURCE)
    points = modelled.sweep("device_iterations", ITERATIONS, host=host, output_mode=mode)
    known = {point.value: point.profile for point in points if point.profile is not None}
    if iterations not in known:
        refused = next(point.refused for point in points if point.value == iterations)
        return View(text=f"PopTorch refuses this: {refused}")
    whole = [known[each].samples_per_second if each in known else None for each in ITERATIONS]
    alone = [known[each].device_samples_per_second if each in known else None for each in ITERATIONS]
    drawn = curves_figure(
        ITERATIONS,
        {"whole program": whole, "IPUs alone": alone},
        "device iterations",
        "images a second (modelled)",
        f"{program}: {iterations} device iterations",
        log_x=True,
        from_zero=True,
    )
    drawn.axes[0].axvline(iterations, color=INK, linestyle=":", linewidth=1.5)
    chosen = known[iterations]
    words = (
        f"Images a second (modelled) over 1 to {ITERATIONS[-1]} device iterations. With {iterations}, the whole "
        f"program reaches {chosen.samples_per_second:,.0f}, the IPUs alone {chosen.device_samples_per_second:,.0f}."
    )
    return View(
        drawn, description=words, rows=[_row(chosen)], text=f"Modelled. What limits this program: {chosen.limited_by}."
    )


def _row(profile: Profile) -> dict[str, object]:
    parts = call_parts(profile)
    return {
        "images in a call": f"{profile.samples_per_call:,}",
        "loading": _milliseconds(parts.load),
        "work of the call": _milliseconds(parts.call),
        "work of the IPUs": _milliseconds(parts.device),
        "results come after": _milliseconds(parts.total),
        "images a second": f"{profile.samples_per_second:,.0f}",
    }


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
