"""What every tile holds, drawn as areas on top of each other: parameters, code, activations, temporary data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ipu_model.profiling.data import IpuMemory
from ipu_model.report.breakdown import MEMORY_GROUPS, memory_group
from ipu_model.report.figures.canvas import area, key
from ipu_model.report.quantities import KIB
from ipu_model.report.style import DARK, INK, MEMORY_LOOKS, OTHER_LOOK, Look

ABOVE = Look("none", "xxxx", DARK)


def stacked_tiles(axes: Axes, memory: IpuMemory, start: int, limit: int) -> list[str]:
    """Draw the groups of categories on each tile from `start` on, and return the names of those that are there.

    The line above them is what each tile holds at its own fullest moment, which need not be that of the fullest
    tile; hatched is what is above the limit.
    """
    groups = _groups(memory)
    numbers = np.arange(start, start + len(memory.tiles))
    floor = np.zeros(len(memory.tiles))
    for name, held in groups.items():
        top = floor + held / KIB
        axes.fill_between(numbers, top, floor, step="mid", **area(MEMORY_LOOKS.get(name, OTHER_LOOK), 0.0))
        floor = top
    most = np.array(memory.tiles) / KIB
    axes.step(numbers, most, where="mid", color=INK, linewidth=0.8)
    if most.max(initial=0.0) > limit / KIB:
        above = most > limit / KIB
        axes.fill_between(numbers, most, limit / KIB, where=above.tolist(), step="mid", **area(ABOVE, 0.0))
    return list(groups)


def keys(names: set[str], *, above: bool) -> list[Patch]:
    """Return the legend's entries for these groups, in the order in which they are drawn."""
    entries = [key(name, MEMORY_LOOKS.get(name, OTHER_LOOK)) for name in MEMORY_GROUPS if name in names]
    return [*entries, key("above the limit", ABOVE)] if above else entries


def _groups(memory: IpuMemory) -> Mapping[str, np.ndarray]:
    """Return the bytes of each group on every tile, in drawing order."""
    found = {name: np.zeros(len(memory.tiles)) for name in MEMORY_GROUPS}
    for category in memory.categories:
        found[memory_group(category.name)] += np.array(category.tiles)
    return {name: held for name, held in found.items() if held.any()}
