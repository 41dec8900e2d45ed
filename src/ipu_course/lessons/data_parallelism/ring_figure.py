"""Ring all-reduce step by step: a reduce-scatter makes the sums, an all-gather hands them round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import FrozenSet, Tuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ipu_course.figures.board import SHEET_INCHES, SMALL, Drawing, Place, arrow, box, sheet, write
from ipu_course.figures.looks import LINK, Look
from ipu_course.figures.style import BLUE, INK, ORANGE, in_style

REDUCE_SCATTER, ALL_GATHER = "reduce-scatter", "all-gather"
MOST_REPLICAS = 6
ROW = 0.44
SHADES = ("#FFFFFF", "#CFE6F5", "#9CCBEA", "#56B4E9", BLUE)
Chunk = FrozenSet[int]
"""The replicas whose gradients are in a chunk's sum."""
Held = Tuple[Tuple[Chunk, ...], ...]  # a value, not an annotation: Python 3.8 runs it
"""What every replica holds: ``held[replica][chunk]``."""


@dataclass(frozen=True)
class RingStep:
    """One step: which chunk each replica sends to the next one, and what all hold afterwards.

    ``holds[replica][chunk]`` is the set of replicas whose gradients are in the sum.
    """

    phase: str
    sends: tuple[int, ...]
    holds: Held


def ring_start(replicas: int) -> Held:
    """Return what each replica holds before: its own gradient in every chunk."""
    return tuple(tuple(frozenset({replica}) for _ in range(replicas)) for replica in range(replicas))


def ring_steps(replicas: int) -> tuple[RingStep, ...]:
    """Return the 2 (replicas - 1) steps of an all-reduce in a ring; replica r sends to replica r + 1.

    Raises ``ValueError`` below two replicas.
    """
    if replicas < 2:
        raise ValueError(f"a ring has at least 2 replicas, not {replicas}")
    holds = [list(chunks) for chunks in ring_start(replicas)]
    steps: list[RingStep] = []
    for number in range(2 * (replicas - 1)):
        reduces = number < replicas - 1
        sends = tuple((replica - number + (0 if reduces else replicas)) % replicas for replica in range(replicas))
        sent = [holds[replica][sends[replica]] for replica in range(replicas)]
        for replica in range(replicas):
            to, chunk = (replica + 1) % replicas, sends[replica]
            holds[to][chunk] = holds[to][chunk] | sent[replica] if reduces else sent[replica]
        phase = REDUCE_SCATTER if reduces else ALL_GATHER
        steps.append(RingStep(phase, sends, tuple(tuple(chunks) for chunks in holds)))
    return tuple(steps)


def bytes_sent(steps: tuple[RingStep, ...], replicas: int, size: float) -> float:
    """Return how many bytes each replica sends in all these steps, for gradients of ``size`` bytes."""
    return len(steps) * size / replicas


def ring_all_reduce(replicas: int = 4) -> Drawing:
    """Draw every step of a ring all-reduce: a row for each replica, a cell for each part of the gradient.

    Raises ``ValueError`` for fewer than 2 replicas and more than 6, whose cells would be too small.
    """
    if replicas > MOST_REPLICAS:
        raise ValueError(f"at most {MOST_REPLICAS} replicas can be drawn, not {replicas}")
    steps = ring_steps(replicas)
    with in_style():
        height = 1.3 + ROW * replicas
        figure, axes = sheet(height)
        left, gap, panels = 1.1, 0.13, len(steps) + 1
        width = (SHEET_INCHES - left - 0.05 - gap * (panels - 1)) / panels
        for replica in range(replicas):
            write(axes, (left - 0.1, _row(replica, replicas) + 0.17), f"replica {replica}", ha="right", fontsize=SMALL)
        _draw_ring(axes, replicas)
        states = (ring_start(replicas), *(step.holds for step in steps))
        for number, holds in enumerate(states):
            x = left + number * (width + gap)
            received = () if number == 0 else steps[number - 1].sends
            _draw_panel(axes, x, width, holds, received)
            write(axes, (x + width / 2, height - 0.62), "start" if number == 0 else f"step {number}", fontsize=SMALL)
        for phase, first in ((REDUCE_SCATTER, 1), (ALL_GATHER, replicas)):
            _draw_bracket(axes, phase, left + first * (width + gap), (replicas - 1) * (width + gap) - gap, height - 0.4)
        note = "number: how many replicas are in the sum;  frame: just received"
        write(axes, (left, 0.16), note, ha="left", fontsize=SMALL)
    return Drawing(figure, _words(steps, replicas))


def _row(replica: int, replicas: int) -> float:
    return 0.42 + ROW * (replicas - 1 - replica)


def _draw_ring(axes: Axes, replicas: int) -> None:
    """Draw who sends to whom: each replica to the next one, and the last one to the first."""
    for replica in range(replicas - 1):
        begin, end = _row(replica, replicas), _row(replica + 1, replicas) + 0.34
        arrow(axes, (0.62, begin + 0.08), (0.62, end - 0.08), linewidth=1.3, mutation_scale=9, color=LINK.face)
    last, first = _row(replicas - 1, replicas) + 0.17, _row(0, replicas) + 0.17
    bow = f"arc3,rad={-1.1 / replicas:.2f}"
    arrow(axes, (0.26, last), (0.26, first), connectionstyle=bow, linewidth=1.3, mutation_scale=9, color=LINK.face)


def _draw_panel(axes: Axes, x: float, width: float, holds: Held, sends: tuple[int, ...]) -> None:
    replicas = len(holds)
    cell = width / replicas
    for replica, chunks in enumerate(holds):
        for chunk, members in enumerate(chunks):
            place = Place(x + chunk * cell, _row(replica, replicas), cell, 0.34)
            shade = SHADES[round((len(members) - 1) / (replicas - 1) * (len(SHADES) - 1))]
            complete = len(members) == replicas
            box(
                axes, place, Look(shade, edge=INK, text="white" if complete else INK), str(len(members)), fontsize=SMALL
            )
        if sends:
            received = sends[(replica - 1) % replicas]
            corner = (x + received * cell, _row(replica, replicas))
            axes.add_patch(Rectangle(corner, cell, 0.34, fill=False, edgecolor=ORANGE, linewidth=2.2, zorder=4))


def _draw_bracket(axes: Axes, text: str, x: float, width: float, y: float) -> None:
    axes.plot([x, x, x + width, x + width], [y - 0.06, y, y, y - 0.06], color=INK, linewidth=1.2)
    write(axes, (x + width / 2, y + 0.18), text, fontweight="bold")


def _words(steps: tuple[RingStep, ...], replicas: int) -> str:
    share = bytes_sent(steps, replicas, 1.0)
    one = replicas - 1
    return (
        f"A ring all-reduce over {replicas} replicas, whose gradients are cut into {replicas} parts. First the "
        f"reduce-scatter ({one} step{'s' if one > 1 else ''}): in each step every replica sends one part to the next "
        "replica, which adds it to its own; then each replica has one complete sum. Then the all-gather (as many "
        "steps): the complete sums go round until all replicas have all of them. Each replica sends "
        f"2 x ({replicas} - 1) / {replicas} = {share:.4g} times the size of its gradients."
    )
