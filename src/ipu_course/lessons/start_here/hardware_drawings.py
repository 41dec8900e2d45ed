"""Drawings of the hardware: one IPU with its tiles, and the system of host, IPUs and memory that it is part of."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from ipu_course.figures.board import LARGE, SMALL, Drawing, Place, arrow, box, sheet, write
from ipu_course.figures.hardware import Hardware, hardware
from ipu_course.figures.looks import CHIP, COMPUTE, EXCHANGE, HOST, LINK, LOAD, MEMORY
from ipu_course.figures.style import INK, in_style

COLUMNS = 46  # 1,472 tiles are two halves of 16 rows with 46 tiles each
LOADERS = 3  # enough to show that there are several
MIB, GIGA, TERA = 2**20, 1e9, 1e12
WHITE_BELOW = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}


def chip() -> Drawing:
    """Draw one IPU with all its tiles: each is a small square, half processor and half memory."""
    known = hardware()
    with in_style():
        figure, axes = sheet(4.4)
        box(axes, Place(0.25, 0.72, 7.1, 3.6), CHIP, round_by=0.12)
        write(axes, (0.45, 4.1), f"one IPU: {known.tiles:,} tiles", ha="left", fontsize=LARGE, fontweight="bold")
        write(axes, (7.15, 4.1), f"{known.chip_bytes / MIB:.0f} MiB in all", ha="right")
        for place in tile_places(known):
            _draw_half(axes, place)
        box(axes, Place(0.45, 2.24, 6.7, 0.36), EXCHANGE, f"exchange: {_exchange(known) / TERA:.1f} TB/s",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 2})  # fmt: skip
        box(axes, Place(0.9, 0.5, 2.6, 0.4), LINK, "links to other IPUs", fontsize=SMALL)
        box(axes, Place(4.1, 0.5, 2.6, 0.4), LINK, "link to the host", fontsize=SMALL)
        arrow(axes, (2.2, 0.48), (2.2, 0.08), arrowstyle="<|-|>")
        arrow(axes, (5.4, 0.48), (5.4, 0.08), arrowstyle="<|-|>")
        write(axes, (2.4, 0.26), f"{known.link_bytes_per_second / GIGA:.0f} GB/s each way", ha="left", fontsize=SMALL)
    return Drawing(figure, _chip_words(known))


def tile_places(known: Hardware) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    """Return where the tiles are drawn, above and below the exchange; there are as many as the chip has."""
    rows = -(-known.tiles // (2 * COLUMNS))
    width, height = 6.7 / COLUMNS, 1.2 / rows
    places = []
    for number in range(known.tiles):
        row, column = divmod(number, COLUMNS)
        bottom = 2.7 if row < rows else 0.98
        x, y = 0.45 + (column + 0.1) * width, bottom + (row % rows + 0.1) * height
        places.append(Place(x, y, 0.8 * width, 0.75 * height))
    return tuple(places[: rows * COLUMNS]), tuple(places[rows * COLUMNS :])


def _draw_half(axes: Axes, places: tuple[Place, ...]) -> None:
    """Draw tiles: the left half of each is its processor, the right half its memory."""
    for look, part in ((COMPUTE, 0.0), (MEMORY, 0.5)):
        halves = [Rectangle((p.x + part * p.width, p.y), p.width / 2, p.height) for p in places]
        axes.add_collection(PatchCollection(halves, facecolor=look.face, edgecolor=INK, linewidth=0.2, zorder=3))


def _exchange(known: Hardware) -> float:
    return known.tiles * known.exchange_bytes_per_cycle * known.clock_hz


def _chip_words(known: Hardware) -> str:
    return (
        f"One IPU with its {known.tiles:,} tiles, every one drawn: a processor and its own memory. Together they have "
        f"{known.chip_bytes / MIB:.0f} MiB and run {known.chip_threads:,} threads. There is no memory that all "
        f"tiles share: an exchange in the middle moves {_exchange(known) / TERA:.1f} TB/s between them. At the edge "
        f"are links to other IPUs, {known.link_bytes_per_second / GIGA:.0f} GB/s each way, and a link to the host."
    )


def ipu_system() -> Drawing:
    """Draw a host with its program and loaders, the host link, and an IPU-M2000 with its IPUs, links and memory."""
    known = hardware()
    with in_style():
        figure, axes = sheet(4.1)
        _draw_host(axes)
        arrow(axes, (2.22, 2.0), (3.33, 2.0), arrowstyle="<|-|>", linewidth=2.4)
        write(axes, (2.78, 2.33), f"host link\n{known.host_bytes_per_second / GIGA:.1f} GB/s", fontsize=SMALL)
        _draw_machine(axes, known)
    return Drawing(figure, _system_words(known))


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


def _system_words(known: Hardware) -> str:
    return (
        "An IPU system. On the left is the host: your Python program, and loaders that prepare samples at the same "
        f"time. A host link of {known.host_bytes_per_second / GIGA:.1f} GB/s leads to an IPU-M2000, which has "
        f"{known.ipus} IPUs of {known.chip_bytes / MIB:.0f} MiB each, IPU-Links between them "
        f"({known.link_bytes_per_second / GIGA:.0f} GB/s for each IPU and direction), and "
        f"{known.streaming_bytes / GIGA:.0f} GB of streaming memory beside the chips."
    )
