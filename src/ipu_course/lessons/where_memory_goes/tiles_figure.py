"""What the parameters take on every tile: spread evenly, mapped by hand, and as modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterable, Mapping, Sequence

from matplotlib.figure import Figure
from torch import nn

from ipu_course import engine, show
from ipu_course.figures.looks import WEIGHTS
from ipu_course.figures.style import INK, ORANGE, WIDTH_INCHES, in_style, only_grid
from ipu_course.lessons.where_memory_goes.by_hand import counted_by, map_linearly

if TYPE_CHECKING:
    from ipu_course.engine import IpuMemory, Profile

KIB = 1024
BYTES_EACH = 10  # of a parameter of the workshop's program: weight 2, accumulator 2, moments 2 and 4
TileMapping = Callable[[int, int], Sequence[float]]
"""Lays a weight of some elements, of some bytes each, on the tiles."""

PARAMETERS = ("variables", "optimiser state", "gradient accumulators")


def parameter_tiles(memory: IpuMemory) -> list[float]:
    """Return the bytes of variables, optimiser state and accumulators on every tile of an IPU."""
    categories = [each.tiles for each in memory.categories if each.name in PARAMETERS]
    return [sum(tile) for tile in zip(*categories)]


def mapped_tiles(mapping: TileMapping, layers: Iterable[nn.Module]) -> list[float]:
    """Return the bytes of the parameters of some float16 layers on every tile, by a mapping of weights.

    Each parameter has 10 bytes, which lie where its weight of 2 bytes does. Vectors, such as biases, are left out.
    """
    weights = [each for layer in layers for each in layer.parameters() if each.dim() > 1]
    return [BYTES_EACH / 2 * sum(tile) for tile in zip(*(mapping(each.numel(), 2) for each in weights))]


def show_parameter_tiles(profile: Profile, mapping: TileMapping, layers: Mapping[int, Sequence[nn.Module]]) -> None:
    """Show the bytes of the parameters on every tile, modelled and by hand; ``layers`` has those of each IPU.

    ``mapping`` is the learner's function; as long as it is open, the course's maps.
    """
    if profile is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    counted = counted_by(mapping, map_linearly)
    by_hand = {ipu: mapped_tiles(counted.function, each) for ipu, each in layers.items()}
    modelled = {ipu: parameter_tiles(profile.memory[ipu]) for ipu in by_hand}
    words = "; ".join(
        f"IPU {ipu}: evenly {sum(tiles) / len(tiles) / KIB:.1f}, by hand at most {max(by_hand[ipu]) / KIB:.1f}, "
        f"modelled at most {max(tiles) / KIB:.1f}"
        for ipu, tiles in modelled.items()
    )
    show.figure(
        parameter_tiles_figure(modelled, by_hand),
        "IPU 1 has three times the parameters; on IPU 0 the last tiles have more than the first.",
        f"KiB of parameters on each of 1,472 tiles of two IPUs. {words}.",
    )
    rows: list[dict[str, object]] = [
        {
            "IPU": f"IPU {ipu}",
            "spread evenly": f"{sum(tiles) / len(tiles) / KIB:.1f} KiB",
            f"mapped by {counted.by}, fullest tile": f"{max(by_hand[ipu]) / KIB:.1f} KiB",
            "modelled, fullest tile": f"{max(tiles) / KIB:.1f} KiB",
            "modelled, emptiest tile": f"{min(tiles) / KIB:.1f} KiB",
        }
        for ipu, tiles in modelled.items()
    ]
    show.table(rows, index="IPU")


def parameter_tiles_figure(modelled: Mapping[int, Sequence[float]], by_hand: Mapping[int, Sequence[float]]) -> Figure:
    """Return one panel for each IPU, with the same axis: modelled as an area, by hand and even as lines."""
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 3.4), layout="constrained")
        panels = figure.subplots(1, len(modelled), sharey=True, squeeze=False)[0]
        for axes, (ipu, tiles) in zip(panels, modelled.items()):
            numbers = range(len(tiles))
            kib = [each / KIB for each in tiles]
            axes.fill_between(numbers, kib, step="mid", label="modelled", **WEIGHTS.area(0.0))
            hand = [each / KIB for each in by_hand[ipu]]
            axes.step(numbers, hand, where="mid", color=ORANGE, linewidth=1.6, label="mapped by hand")
            axes.axhline(sum(kib) / len(kib), color=INK, linestyle="--", linewidth=1.4, label="spread evenly")
            axes.set(xlim=(0, len(tiles)), xlabel=f"tile of IPU {ipu}")
            only_grid(axes)
        panels[0].set_ylabel("KiB for parameters")
        panels[0].legend(frameon=False, loc="upper left")
        panels[0].set_title("Weights, optimiser state and accumulators, tile by tile")
        panels[0].set_ylim(0, 1.35 * max(max(each) for each in modelled.values()) / KIB)
    return figure
