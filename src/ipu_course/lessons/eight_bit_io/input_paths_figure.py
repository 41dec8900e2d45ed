"""The way of an image from the file to the network: which steps the host does, and what crosses the link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from ipu_course import show
from ipu_course.figures.style import GREY, INK, ORANGE, in_style, new_figure

HOST_STEPS = ("load the\npicture", "flip,\nresize", "to a uint8\ntensor")
MOVED_STEPS = ("convert\nto fp16", "normalise")
DEVICE_STEP = "network"

STEP_WIDTH, GAP = 1.3, 0.3
STEP_HEIGHT = 0.52
BOX = "round,pad=0,rounding_size=0.08"
HOST_COLUMNS = len(HOST_STEPS) + len(MOVED_STEPS)
LINK_WIDTH = 1.9
DEVICE_COLUMNS = len(MOVED_STEPS) + 1
POINTS_PER_BYTE_OF_A_NUMBER = 3.0


@dataclass(frozen=True)
class InputPath:
    """One way of sending images: numbers of ``bytes_per_number`` bytes, normalised on the host or on the device."""

    name: str
    bytes_per_number: int
    numbers: int
    on_device: bool

    @property
    def bytes_per_image(self) -> int:
        """Bytes that cross the link for one image."""
        return self.bytes_per_number * self.numbers

    @property
    def host_steps(self) -> tuple[str, ...]:
        """What the host does with an image before it sends it."""
        return HOST_STEPS if self.on_device else HOST_STEPS + MOVED_STEPS

    @property
    def device_steps(self) -> tuple[str, ...]:
        """What the IPU does with an image that it has received."""
        return (*MOVED_STEPS, DEVICE_STEP) if self.on_device else (DEVICE_STEP,)


def show_input_paths(paths: Sequence[InputPath], takeaway: str) -> None:
    """Show what host and IPU do on each path, and the bytes of an image that cross the link."""
    show.figure(input_paths_figure(paths), takeaway, input_paths_description(paths))


def input_paths_description(paths: Sequence[InputPath]) -> str:
    """Return the figure in words: the boxes of each row from left to right, and the bytes on the link."""
    rows = (
        f"{path.name}: the host's steps are {_listed(path.host_steps)}; {path.bytes_per_image:,} bytes of each image "
        f"cross the link; the IPU's steps are {_listed(path.device_steps)}."
        for path in paths
    )
    return " ".join([f"{len(paths)} rows of boxes, one for each path of an image.", *rows])


def input_paths_figure(paths: Sequence[InputPath]) -> Figure:
    """Draw one row for each path: boxes for the host's steps, an arrow for the link, boxes for the device's steps."""
    host_end = HOST_COLUMNS * (STEP_WIDTH + GAP)
    device_start = host_end + LINK_WIDTH
    end = device_start + DEVICE_COLUMNS * (STEP_WIDTH + GAP)
    with in_style():
        figure, axes = new_figure(0.7 + 0.95 * len(paths))
        for start, stop, name in ((-GAP, host_end, "host"), (device_start - GAP, end, "IPU")):
            axes.axvspan(start, stop, color=GREY, zorder=0)
            axes.text((start + stop) / 2, -0.68, name, ha="center", va="center", fontweight="bold")
        for row, path in enumerate(paths):
            _draw_path(axes, row, path, host_end, device_start)
        axes.set_yticks(range(len(paths)), [path.name for path in paths])
        axes.set(xlim=(-GAP, end), ylim=(len(paths) - 0.45, -0.9))
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure


def _listed(steps: Sequence[str]) -> str:
    return ", ".join(step.replace("\n", " ") for step in steps)


def _draw_path(axes: Axes, row: int, path: InputPath, host_end: float, device_start: float) -> None:
    ends = [_draw_steps(axes, row, 0.0, path.host_steps), device_start]
    _draw_steps(axes, row, device_start, path.device_steps)
    arrow = FancyArrowPatch(
        (ends[0] - GAP, row),
        (ends[1], row),
        arrowstyle="simple,head_width=1,head_length=0.6,tail_width=0.45",
        mutation_scale=8 + POINTS_PER_BYTE_OF_A_NUMBER * path.bytes_per_number,
        facecolor=INK,
        edgecolor="none",
    )
    axes.add_patch(arrow)
    middle = (host_end + device_start - GAP) / 2
    axes.text(middle, row - 0.33, f"{path.bytes_per_image:,} bytes", ha="center", va="center", fontsize=9)


def _draw_steps(axes: Axes, row: int, start: float, steps: Sequence[str]) -> float:
    for step in steps:
        moved = step in MOVED_STEPS
        look: dict[str, Any] = {"edgecolor": ORANGE, "linewidth": 2.4} if moved else {"edgecolor": INK}
        corner = (start, row - STEP_HEIGHT / 2)
        box = FancyBboxPatch(corner, STEP_WIDTH, STEP_HEIGHT, boxstyle=BOX, facecolor="white", **look)
        axes.add_patch(box)
        weight = "bold" if moved else "normal"
        axes.text(start + STEP_WIDTH / 2, row, step, ha="center", va="center", fontsize=8.5, fontweight=weight)
        start += STEP_WIDTH + GAP
    return start
