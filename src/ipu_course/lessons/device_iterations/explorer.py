"""Lesson 03's explorer: what device iterations gain, for a program and a host of the learner's choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from ipu_course import engine
from ipu_course.call_parts import call_parts
from ipu_course.explorers import Choice, Explorer, Slider, View
from ipu_course.figures.curves import curves_figure
from ipu_course.figures.style import INK
from ipu_course.lessons.device_iterations.exercises import ITERATIONS

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

SMALL, PIXELS, RESNET = "small network, inference", "pixel network, training", "ResNet-101, training"
CALL_MILLISECONDS = (0, 1, 10, 34)
IMAGE_MICROSECONDS = (0, 20, 180, 800)
MODES = {"Final (training default)": "final", "All (inference default)": "all"}
SOURCE = "chosen in the explorer"


def iterations_view(
    programs: Mapping[str, ModelledModule],
    program: str,
    iterations: int,
    call_milliseconds: float,
    image_microseconds: float,
    mode: str,
) -> View:
    """Show the images a second over the device iterations, with the chosen number marked."""
    host = engine.host_work(image_microseconds / 1e6, call_milliseconds / 1e3, False, 0, SOURCE)
    points = programs[program].sweep("device_iterations", ITERATIONS, host=host, output_mode=mode)
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
        "images per second (modelled)",
        f"{program}: {iterations} device iterations",
        log_x=True,
        from_zero=True,
    )
    drawn.axes[0].axvline(iterations, color=INK, linestyle=":", linewidth=1.5)
    chosen = known[iterations]
    share = chosen.samples_per_second / chosen.device_samples_per_second
    return View(
        drawn,
        takeaway=f"The whole program reaches {share:.0%} of what the IPUs could do alone (modelled).",
        description=f"Images per second (modelled) over 1 to {ITERATIONS[-1]} device iterations. With {iterations}, "
        f"the whole program reaches {chosen.samples_per_second:,.0f}, the IPUs alone "
        f"{chosen.device_samples_per_second:,.0f}.",
        rows=[_row(chosen)],
        text=f"Modelled. The bottleneck of the program: {chosen.limited_by}.",
    )


def _row(profile: Profile) -> dict[str, object]:
    parts = call_parts(profile)
    return {
        "images per call": f"{profile.samples_per_call:,}",
        "loading": _milliseconds(parts.load),
        "work of the call": _milliseconds(parts.call),
        "work of the IPUs": _milliseconds(parts.device),
        "results come after": _milliseconds(parts.total),
        "images per second": f"{profile.samples_per_second:,.0f}",
    }


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


DEVICE_ITERATIONS = Explorer(
    controls={
        "program": Choice("program", {name: name for name in (SMALL, PIXELS, RESNET)}, SMALL),
        "iterations": Slider("device iterations", ITERATIONS, 1),
        "call_milliseconds": Slider("host work for each call, ms", CALL_MILLISECONDS, 0),
        "image_microseconds": Slider("host work for each image, µs", IMAGE_MICROSECONDS, 0),
        "mode": Choice("output mode", MODES, "final"),
    },
    view=iterations_view,
)
