"""An IPU system: a host that loads data, and a machine of four IPUs with streaming memory."""

from __future__ import annotations

from matplotlib.axes import Axes

from ipu_course.figures.drawing import Drawing
from ipu_course.figures.drawings.board import LARGE, SMALL, Place, arrow, box, sheet, write
from ipu_course.figures.hardware import Hardware, hardware
from ipu_course.figures.looks import CHIP, COMPUTE, HOST, LINK, LOAD, MEMORY
from ipu_course.figures.style import in_style

LOADERS = 3  # enough to show that there are several
GIGA, MIB = 1e9, 2**20
WHITE_BELOW = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}


def ipu_system() -> Drawing:
    """Draw a host with its program and loaders, the host link, and an IPU-M2000 with its IPUs, links and memory."""
    known = hardware()
    with in_style():
        figure, axes = sheet(4.1)
        _draw_host(axes)
        arrow(axes, (2.22, 2.0), (3.33, 2.0), arrowstyle="<|-|>", linewidth=2.4)
        write(axes, (2.78, 2.33), f"host link\n{known.host_bytes_per_second / GIGA:.1f} GB/s", fontsize=SMALL)
        _draw_machine(axes, known)
    return Drawing(figure, _words(known))


def _draw_host(axes: Axes) -> None:
    box(axes, Place(0.1, 0.3, 2.1, 3.7), HOST, round_by=0.12)
    write(axes, (0.28, 3.72), "host", ha="left", fontsize=LARGE, fontweight="bold")
    box(axes, Place(0.28, 2.55, 1.74, 0.85), CHIP, "your program\n(Python)")
    for loader in range(LOADERS):
        box(axes, Place(0.28, 0.5 + 0.62 * loader, 1.74, 0.48), LOAD, "loader", bbox=WHITE_BELOW, fontsize=SMALL)
    arrow(axes, (1.15, 2.26), (1.15, 2.52))


def _draw_machine(axes: Axes, known: Hardware) -> None:
    box(axes, Place(3.35, 0.3, 4.15, 3.7), CHIP, round_by=0.12)
    write(axes, (3.53, 3.72), f"IPU-M2000: {known.ipus} IPUs", ha="left", fontsize=LARGE, fontweight="bold")
    for ipu in range(known.ipus):
        place = Place(3.6 + 2.15 * (ipu % 2), 2.55 - 1.15 * (ipu // 2), 1.5, 0.75)
        box(axes, place, COMPUTE, f"IPU {ipu}\n{known.chip_bytes / MIB:.0f} MiB")
    look = {"arrowstyle": "<|-|>", "color": LINK.face, "linewidth": 3.0}
    for row in (2.925, 1.775):
        arrow(axes, (5.12, row), (5.73, row), **look)
    for column in (4.35, 6.5):
        arrow(axes, (column, 2.53), (column, 2.17), **look)
    write(axes, (5.43, 2.35), "IPU-Links", fontsize=SMALL)
    memory = f"streaming memory: {known.streaming_bytes / GIGA:.0f} GB"
    box(axes, Place(3.6, 0.5, 3.65, 0.5), MEMORY, memory)
    for column in (4.35, 6.5):
        arrow(axes, (column, 1.38), (column, 1.03), arrowstyle="<|-|>")


def _words(known: Hardware) -> str:
    return (
        "An IPU system. On the left is the host: your Python program, and loaders that prepare samples at the same "
        f"time. A host link of {known.host_bytes_per_second / GIGA:.1f} GB/s leads to an IPU-M2000, which has "
        f"{known.ipus} IPUs of {known.chip_bytes / MIB:.0f} MiB each, IPU-Links between them "
        f"({known.link_bytes_per_second / GIGA:.0f} GB/s for each IPU and direction), and "
        f"{known.streaming_bytes / GIGA:.0f} GB of streaming memory beside the chips."
    )
