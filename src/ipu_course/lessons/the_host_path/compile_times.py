"""How long Graphcore's compiler took: published times, and the line that was fitted to them."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_course import show
from ipu_course.figures import bars_figure
from ipu_course.lesson_folders import lesson_folder
from ipu_course.published import published_figure

SECONDS_PER_IPU, SECONDS_PER_LAYER = 20.0, 4.3  # as in the IPU Model's calibration, which a test compares
KNOWN, FIT = "published (small CNN: derived)", "fitted line"


@dataclass(frozen=True)
class CompiledProgram:
    """A program whose compilation was published: its key, the IPUs of one copy, its convolutions and linear layers."""

    name: str
    key: str
    ipus: int
    layers: int


PROGRAMS = (
    CompiledProgram("small CNN, 1 IPU", "compile_small", 1, 4),
    CompiledProgram("digits, 4 IPUs", "compile_digits", 4, 4),
    CompiledProgram("ResNet-50, 1 IPU", "compile_50_1", 1, 54),
    CompiledProgram("ResNet-50, 2 IPUs", "compile_50_2", 2, 54),
    CompiledProgram("ResNet-101, 2 IPUs", "compile_101", 2, 105),
)


def fitted_seconds(ipus: int, layers: int) -> float:
    """Return the seconds of a training program's compilation by the fitted line."""
    return SECONDS_PER_IPU * ipus + SECONDS_PER_LAYER * layers


def show_compile_times() -> None:
    """Show the published times beside the line that was fitted to them."""
    folder = lesson_folder("15")
    published = [published_figure(folder, each.key) for each in PROGRAMS]
    fitted = [fitted_seconds(each.ipus, each.layers) for each in PROGRAMS]
    drawn = bars_figure(
        [each.name for each in PROGRAMS], {KNOWN: [each.value for each in published], FIT: fitted}, "seconds",
        "Compiling training programs with the Poplar SDK", form="{:.0f}",
    )  # fmt: skip
    words = "; ".join(
        f"{each.name}: {known.value:.0f} {known.kind} {known.source}, {seconds:.0f} fitted"
        for each, known, seconds in zip(PROGRAMS, published, fitted)
    )
    takeaway = "Layers cost most: every different one is planned, placed and linked for 1,472 tiles."
    what = "Two bars for each program: seconds to compile it, published or derived, and by the fitted line."
    show.figure(drawn, takeaway, f"{what} {words}.")
    print(
        f"Fitted line: {SECONDS_PER_IPU:.0f} s for each IPU of one copy and {SECONDS_PER_LAYER} s for each "
        "convolution or linear layer, fitted to these five programs."
    )
