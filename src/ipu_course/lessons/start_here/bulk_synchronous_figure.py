"""Bulk-synchronous steps: all tiles compute, wait for the slowest, exchange, and go on together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from matplotlib.axes import Axes

from ipu_course.figures.board import SMALL, Drawing, chart, keys, without_frame
from ipu_course.figures.hardware import hardware
from ipu_course.figures.looks import COMPUTE, EXCHANGE, SYNC, WAIT, Look
from ipu_course.figures.style import INK, in_style

ONE_SLOW_TILE = (700.0, 760.0, 640.0, 1900.0, 720.0, 680.0)
EVEN = (900.0, 880.0, 920.0, 900.0, 910.0, 890.0)
EXCHANGE_CYCLES = 300.0
HALF_ROW = 0.36


@dataclass(frozen=True)
class BulkStep:
    """One step in cycles: when it starts, what each tile computes, and how long all synchronise and exchange."""

    start: float
    compute: tuple[float, ...]
    sync: float
    exchange: float

    @property
    def slowest(self) -> int:
        """The tile that computes longest, which all others wait for."""
        return self.compute.index(max(self.compute))

    @property
    def end(self) -> float:
        """When all tiles have exchanged their data."""
        return self.start + max(self.compute) + self.sync + self.exchange


def bulk_steps(compute: Sequence[Sequence[float]], sync: float, exchange: float) -> tuple[BulkStep, ...]:
    """Return the steps one after another; ``compute`` has the cycles of every tile, step by step.

    Raises ``ValueError`` for no tiles, and for steps with different numbers of tiles.
    """
    if not compute or len({len(tiles) for tiles in compute}) != 1 or not compute[0]:
        raise ValueError("every step needs the cycles of the same tiles, at least of one")
    found: list[BulkStep] = []
    for tiles in compute:
        start = found[-1].end if found else 0.0
        found.append(BulkStep(start, tuple(map(float, tiles)), sync, exchange))
    return tuple(found)


def bulk_synchronous(*compute_cycles_by_tile: Sequence[float], exchange_cycles: float = EXCHANGE_CYCLES) -> Drawing:
    """Draw steps as tiles over time; each argument is one step, with the cycles that every tile computes in it.

    Without arguments it draws an example: one step with a slow tile, and one with even work.
    """
    compute = compute_cycles_by_tile or (ONE_SLOW_TILE, EVEN)
    steps = bulk_steps(compute, float(hardware().sync_cycles), exchange_cycles)
    tiles = len(steps[0].compute)
    with in_style():
        figure, axes = chart(1.3 + 0.36 * tiles)
        for step in steps:
            _draw_step(axes, step)
        for number, step in enumerate(steps, 1):
            axes.text(step.start + 0.006 * steps[-1].end, -0.62, f"step {number}", fontweight="bold", va="center")
        axes.set_yticks(range(tiles), [f"tile {tile}" for tile in range(tiles)])
        axes.set(xlim=(0, steps[-1].end), ylim=(tiles - 0.5, -0.9), xlabel="cycles")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        without_frame(axes, "left")
        keys(figure, (("computes", COMPUTE), ("waits", WAIT), ("synchronises", SYNC), ("exchanges", EXCHANGE)))
    return Drawing(figure, _words(steps))


def _draw_step(axes: Axes, step: BulkStep) -> None:
    ready = step.start + max(step.compute)
    for tile, cycles in enumerate(step.compute):
        _bar(axes, tile, step.start, cycles, COMPUTE)
        _bar(axes, tile, step.start + cycles, ready - step.start - cycles, WAIT)
        _bar(axes, tile, ready, step.sync, SYNC)
        _bar(axes, tile, ready + step.sync, step.exchange, EXCHANGE)
    longest = max(step.compute)
    if longest >= 1.5 * sorted(step.compute)[len(step.compute) // 2]:
        middle = (step.start + longest / 2, step.slowest)
        axes.text(*middle, "all wait for this one", color=COMPUTE.text, ha="center", va="center", fontsize=SMALL)
    axes.axvline(step.end, color=INK, linewidth=1.2, linestyle="--", clip_on=False)


def _bar(axes: Axes, tile: int, start: float, cycles: float, look: Look) -> None:
    if cycles > 0:
        axes.barh(tile, cycles, left=start, height=2 * HALF_ROW, **look.area(0.8))


def _words(steps: tuple[BulkStep, ...]) -> str:
    tiles = len(steps[0].compute)
    several = "s" if len(steps) > 1 else ""
    said = [f"A chart of {tiles} tiles over time, in {len(steps)} step{several} of compute, synchronise, exchange."]
    for number, step in enumerate(steps, 1):
        said.append(
            f"In step {number} tile {step.slowest} computes longest, {max(step.compute):,.0f} cycles; the fastest "
            f"needs {min(step.compute):,.0f} and waits for it, as all others do. Then all synchronise "
            f"({step.sync:,.0f} cycles) and exchange data ({step.exchange:,.0f} cycles)."
        )
    return " ".join(said)
