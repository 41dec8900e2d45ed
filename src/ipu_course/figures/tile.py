"""One tile: a processor with six threads, its own memory, and a way out."""

from __future__ import annotations

from matplotlib.axes import Axes

from ipu_course.figures.board import LARGE, SMALL, Drawing, Place, arrow, box, sheet, write
from ipu_course.figures.hardware import Hardware, hardware
from ipu_course.figures.looks import CHIP, COMPUTE, EXCHANGE, MEMORY
from ipu_course.figures.style import in_style

KIB = 1024


def tile() -> Drawing:
    """Draw one tile: memory, a processor with its threads, and the port to the exchange."""
    known = hardware()
    with in_style():
        figure, axes = sheet(3.5)
        box(axes, Place(0.6, 0.95, 6.4, 2.45), CHIP, round_by=0.12)
        write(axes, (0.8, 3.16), "one tile", ha="left", fontsize=LARGE, fontweight="bold")
        box(axes, Place(0.85, 1.2, 2.2, 1.7), MEMORY, f"memory\n{known.tile_bytes // KIB} KiB", fontsize=LARGE)
        _draw_processor(axes, known)
        arrow(axes, (3.1, 2.05), (3.8, 2.05), arrowstyle="<|-|>")
        box(axes, Place(0.6, 0.12, 6.4, 0.42), EXCHANGE, "exchange: to and from all other tiles", fontsize=SMALL,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 2})  # fmt: skip
        arrow(axes, (1.95, 1.17), (1.95, 0.57), arrowstyle="<|-|>")
        write(
            axes, (2.1, 0.76), f"{known.exchange_bytes_per_cycle:g} bytes a cycle, each way", ha="left", fontsize=SMALL
        )
    return Drawing(figure, _words(known))


def _draw_processor(axes: Axes, known: Hardware) -> None:
    box(axes, Place(3.85, 1.2, 2.9, 1.7), CHIP)
    write(axes, (5.3, 2.68), "processor")
    gap, left, bottom = 0.1, 3.97, 1.62
    width = (2.66 - gap * (known.threads - 1)) / known.threads
    for thread in range(known.threads):
        place = Place(left + thread * (width + gap), bottom, width, 0.85)
        box(axes, place, COMPUTE, str(thread + 1))
    write(axes, (5.3, 1.4), f"{known.threads} threads take turns", fontsize=SMALL)


def _words(known: Hardware) -> str:
    return (
        f"One tile of an IPU. A processor runs {known.threads} threads, which take turns cycle by cycle. Beside it is "
        f"the tile's own memory of {known.tile_bytes // KIB} KiB, the only memory that the processor can read and "
        f"write. Data of other tiles comes and goes through the exchange, {known.exchange_bytes_per_cycle:g} bytes a "
        "cycle in each direction."
    )
