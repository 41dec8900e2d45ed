"""The available-memory proportion: swept over the whole program, and what it does to the passes of the last product."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipu_course import engine, show
from ipu_course.figures.style import BLUE, INK, ORANGE, WIDTH_INCHES, in_style, only_grid
from ipu_course.lessons.memory_techniques.choices import KIB, fullest_kib

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

PROPORTIONS = (0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05)
DEFAULT = 0.6  # of PopLibs
LAST_PRODUCT = {"matrix product": "forward", "data gradient": "gradient of the rows",
                "weight gradient": "gradient of the weight"}  # fmt: skip
TILES = 1472


@lru_cache(maxsize=64)
def swept(module: ModelledModule, proportion: float, half_partials: bool) -> Profile:
    """Return the profile of a module with a proportion and a type of partials."""
    return module.profile(available_memory_proportion=proportion, half_partials=half_partials)


def show_sweep(module: ModelledModule) -> None:
    """Show what each proportion does to the fullest tile and to the throughput, with partials in float32."""
    if module is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    profiles = [swept(module, proportion, False) for proportion in PROPORTIONS]
    kib = [fullest_kib(profile) for profile in profiles]
    rates = [profile.samples_per_second for profile in profiles]
    listed = "; ".join(f"{each:g}: {size:.0f} KiB, {rate:,.0f}" for each, size, rate in zip(PROPORTIONS, kib, rates))
    show.figure(
        sweep_figure(kib, rates, profiles[0].memory.tile_bytes / KIB),
        "Down to some proportion, memory is almost free; below it, the price rises and nothing more is saved.",
        f"Fullest tile and samples a second over the available-memory proportion, modelled. {listed}.",
    )


def sweep_figure(kib: Sequence[float], rates: Sequence[float], limit: float) -> Figure:
    """Return two charts over the proportion: KiB of the fullest tile, and samples a second."""
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 3.1), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(PROPORTIONS, kib, "o-", color=BLUE, linewidth=2, markersize=5)
        left.axhline(limit, color=INK, linestyle="--", linewidth=1.2)
        left.text(0.6, limit - 8, f"a tile: {limit:.0f} KiB", va="top", fontsize=9)
        left.set(title="Fullest tile (modelled)", ylabel="KiB", ylim=(min([limit, *kib]) - 60, max(kib) + 30))
        right.plot(PROPORTIONS, rates, "s--", color=ORANGE, linewidth=2, markersize=5)
        right.set(title="Throughput (modelled)", ylabel="samples a second", ylim=(0, 1.15 * max(rates)))
        for axes in (left, right):
            _label(axes)
    return figure


def _label(axes: Axes) -> None:
    axes.set(xlabel="available-memory proportion", xlim=(0.62, 0.0))  # from the default downwards
    only_grid(axes)


def show_partials(module: ModelledModule) -> None:
    """Show the partial sums of the last product's three passes, in float32 and in float16."""
    if module is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    rows: list[dict[str, object]] = []
    for half in (False, True):
        profile = swept(module, DEFAULT, half)
        for op in profile.ops:
            if op.scope or op.name not in LAST_PRODUCT:
                continue
            outputs, cuts, size = _elements(op.results[0]), _cuts(op.plan), 2 if half else 4
            rows.append(
                {
                    "partials (modelled)": "float16" if half else "float32",
                    "pass": LAST_PRODUCT[op.name],
                    "cuts of the sum": cuts,
                    "partials, spread evenly": f"{outputs * cuts * size / TILES / KIB:.1f} KiB a tile",
                    "all temporary data": f"{op.temporary_bytes / KIB:.0f} KiB",
                    "cycles": f"{op.cycles:,.0f}",
                }
            )
    show.table(rows)


def _elements(described: str) -> int:
    """Return how many elements a tensor has that is described as "float16[8, 128]"."""
    count = 1
    for size in re.findall(r"\d+", described.partition("[")[2]):
        count *= int(size)
    return count


def _cuts(plan: str) -> int:
    """Return into how many parts a plan cuts the sums of a product."""
    found = re.search(r"\bin / (\d+)", plan)
    return int(found[1]) if found else 1
