"""Optimiser state in streaming memory: off the chip during the micro-batches, on it for the update only."""

from __future__ import annotations

from matplotlib.axes import Axes

from ipu_course.figures.board import LARGE, SMALL, Drawing, Place, arrow, box, sheet, write
from ipu_course.figures.hardware import Hardware, hardware
from ipu_course.figures.looks import ACTIVATIONS, CHIP, MEMORY, OPTIMISER_STATE, UPDATE, WEIGHTS
from ipu_course.figures.style import in_style

GIGA, MIB = 1e9, 2**20
MOMENTS = (
    ("1  micro-batches run", False),
    ("2  weight update", True),
)
"""What happens when, and whether the optimiser's state is on the chip then."""
WHITE_BELOW = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}


def streaming_state() -> Drawing:
    """Draw chip and streaming memory at two moments: while micro-batches run, and at the weight update."""
    known = hardware()
    with in_style():
        figure, axes = sheet(4.3)
        for number, (title, on_chip) in enumerate(MOMENTS):
            _draw_moment(axes, 0.15 + 3.75 * number, title, on_chip, known)
    return Drawing(figure, _words(known))


def _draw_moment(axes: Axes, left: float, title: str, on_chip: bool, known: Hardware) -> None:
    write(axes, (left, 4.1), title, ha="left", fontsize=LARGE, fontweight="bold")
    box(axes, Place(left, 1.75, 3.5, 2.1), CHIP, round_by=0.1)
    write(axes, (left + 0.15, 3.64), f"IPU: {known.chip_bytes / MIB:.0f} MiB", ha="left", fontsize=SMALL)
    box(axes, Place(left + 0.2, 1.95, 0.95, 1.4), WEIGHTS, "weights")
    if on_chip:
        box(axes, Place(left + 1.27, 1.95, 0.95, 1.4), OPTIMISER_STATE, "state", bbox=WHITE_BELOW)
        box(axes, Place(left + 2.34, 1.95, 0.95, 1.4), UPDATE, "update")
    else:
        box(axes, Place(left + 1.27, 1.95, 2.02, 1.4), ACTIVATIONS, "room for\nactivations", bbox=WHITE_BELOW)
    box(axes, Place(left, 0.12, 3.5, 1.12), MEMORY, round_by=0.1)
    memory = f"streaming memory: {known.streaming_bytes / GIGA:.0f} GB"
    write(axes, (left + 0.15, 0.3), memory, ha="left", fontsize=SMALL)
    box(axes, Place(left + 1.27, 0.52, 0.95, 0.55), OPTIMISER_STATE, "state", bbox=WHITE_BELOW)
    if on_chip:
        arrow(axes, (left + 1.52, 1.1), (left + 1.52, 1.92), linewidth=2.4)
        arrow(axes, (left + 1.97, 1.92), (left + 1.97, 1.1), linewidth=2.4)
        write(axes, (left + 1.38, 1.48), "in", ha="right", fontsize=SMALL)
        write(axes, (left + 2.1, 1.48), "and back", ha="left", fontsize=SMALL)


def _words(known: Hardware) -> str:
    return (
        "Chip and streaming memory at two moments. While micro-batches run, the optimiser's state rests in the "
        f"{known.streaming_bytes / GIGA:.0f} GB of streaming memory, and its place on the chip is free for "
        "activations. At the weight update the state streams onto the chip, the update uses it beside the weights, "
        "and it streams back: once in and once out for each update, not for each micro-batch."
    )
