"""A schedule of one weight update in true order over time: who does what when, and what breaks a rule."""

from __future__ import annotations

from typing import Any, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ipu_course.figures.board import Drawing, keys
from ipu_course.figures.looks import BACKWARD, FORWARD, RECOMPUTE, UPDATE, WAIT, Look
from ipu_course.figures.style import INK, ORANGE, WIDTH_INCHES, in_style
from ipu_course.schedule import FORWARD as FORWARD_PASS
from ipu_course.schedule import PassTimes, Problem, Schedule, TimedPass, problems, timed_passes

HALF_ROW = 0.4
MOST_TOLD = 3  # problems in a description
UPDATE_SHARE = 0.035
PHASES, PHASES_AT = ("ramp-up", "steady state", "ramp-down"), -0.62
BROKEN = Look("white", "", ORANGE)
CHARACTER, SMALLEST = 0.72, 6.0  # the width of a letter in its size, and the least size that is written
UNIT = "forward passes"


def schedule(
    of: Schedule, times: PassTimes | Sequence[PassTimes] | None = None, *, title: str = "", unit: str = UNIT
) -> Drawing:
    """Draw all passes in true order on a time axis: a row for each stage, idle time in grey, then the update.

    ``times`` are the lengths of passes in ``unit``, of all stages or of each one (default: forward 1, backward 2, no
    recomputation). Passes that break a rule (``schedule.problems``) have a thick orange frame and the description
    says which rule.
    """
    passes = timed_passes(of, PassTimes() if times is None else times)
    found = problems(of)
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 1.75 + 0.44 * of.stages), layout="constrained")
        axes = figure.add_subplot()
        end = max((each.end for each in passes), default=1.0)
        for stage in range(of.stages):
            axes.add_patch(Rectangle((0, stage - HALF_ROW), end, 2 * HALF_ROW, **WAIT.area(0.0)))
        for each in passes:
            _draw_pass(axes, each, passes, end)
        _frame_problems(axes, passes, found)
        _draw_update(axes, of, end)
        _draw_phases(axes, of, passes, end)
        _label(axes, of, end, title, unit)
        _draw_keys(figure, passes, found)
    return Drawing(figure, _words(of, passes, end, unit, found))


def _draw_pass(axes: Axes, each: TimedPass, passes: Sequence[TimedPass], end: float) -> None:
    bottom, height = _lane(each, passes)
    look = FORWARD if each.of.direction == FORWARD_PASS else BACKWARD
    start = each.start
    if each.recompute:
        axes.add_patch(Rectangle((start, bottom), each.recompute, height, **RECOMPUTE.area(), zorder=2))
        start += each.recompute
    axes.add_patch(Rectangle((start, bottom), each.end - start, height, **look.area(), zorder=2))
    text = f"{'F' if each.of.direction == FORWARD_PASS else 'B'}{each.of.micro_batch + 1}"
    points = (each.end - start) / end * 8.2 * 72
    size = min(9.0, points / len(text) / CHARACTER)
    if size >= SMALLEST:
        below = {"facecolor": look.face, "edgecolor": "none", "pad": 0.8} if look.hatch else None
        axes.text((start + each.end) / 2, bottom + height / 2, text, ha="center", va="center", color=look.text,
                  fontsize=size, zorder=5, bbox=below)  # fmt: skip


def _lane(each: TimedPass, passes: Sequence[TimedPass]) -> tuple[float, float]:
    """Return bottom and height: passes of one stage in one half-step share its row."""
    same = [other.of for other in passes if (other.of.stage, other.of.half_step) == (each.of.stage, each.of.half_step)]
    height = 2 * HALF_ROW / len(same)
    return each.of.stage - HALF_ROW + same.index(each.of) * height, height


def _frame_problems(axes: Axes, passes: Sequence[TimedPass], found: Sequence[Problem]) -> None:
    wrong = {each for problem in found for each in problem.passes}
    for each in passes:
        if each.of in wrong:
            bottom, height = _lane(each, passes)
            look: dict[str, Any] = {"fill": False, "edgecolor": ORANGE, "linewidth": 2.6, "zorder": 6}
            axes.add_patch(Rectangle((each.start, bottom), each.end - each.start, height, **look))


def _draw_update(axes: Axes, of: Schedule, end: float) -> None:
    place = (1.006 * end, -HALF_ROW)
    width, height = UPDATE_SHARE * end, of.stages - 1 + 2 * HALF_ROW
    axes.add_patch(Rectangle(place, width, height, **UPDATE.area()))
    axes.text(place[0] + width / 2, (of.stages - 1) / 2, "update", rotation=90, ha="center", va="center", fontsize=9,
              color=UPDATE.text)  # fmt: skip


def _draw_phases(axes: Axes, of: Schedule, passes: Sequence[TimedPass], end: float) -> None:
    """Name ramp-up, steady state and ramp-down above the rows, where there is a steady state."""
    steady = [each for each in passes if each.of.step in of.steady_steps]
    if not steady:
        return
    borders = (0.0, min(each.start for each in steady), max(each.end for each in steady), end)
    sides = ("left", "center", "right")
    for name, side, begin, stop in zip(PHASES, sides, borders, borders[1:]):
        if stop > begin:
            axes.plot([begin, stop], [PHASES_AT, PHASES_AT], color=INK, linewidth=1.2, marker="|", markersize=8)
            at = {"left": begin, "center": (begin + stop) / 2, "right": stop}[side]
            axes.text(at, PHASES_AT - 0.12, name, ha=side, va="bottom", fontsize=9.5)


def _label(axes: Axes, of: Schedule, end: float, title: str, unit: str) -> None:
    axes.set_title(title)
    top = PHASES_AT - 0.55 if of.steady_steps else -0.5
    axes.set(xlim=(0, (1.01 + UPDATE_SHARE) * end), ylim=(of.stages - 0.5, top), xlabel=f"time ({unit})")
    axes.set_yticks(range(of.stages), [f"IPU {stage}" for stage in range(of.stages)])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_color(INK)


def _draw_keys(figure: Figure, passes: Sequence[TimedPass], found: Sequence[Problem]) -> None:
    entries: list[tuple[str, Look]] = [("F1: forward pass of micro-batch 1", FORWARD)]
    if any(each.recompute for each in passes):
        entries.append(("recomputation", RECOMPUTE))
    entries += [("B1: its backward pass", BACKWARD), ("idle", WAIT)]
    if found:
        entries.append(("breaks a rule", BROKEN))
    keys(figure, entries, columns=5)


def _words(of: Schedule, passes: Sequence[TimedPass], end: float, unit: str, found: Sequence[Problem]) -> str:
    work = sum(each.end - each.start for each in passes)
    said = [
        f"{of.micro_batches} micro-batches on {of.stages} IPUs in true order over {end:,.4g} {unit}, {of.steps} "
        f"pipeline steps; on average an IPU works for {work / (of.stages * end):.1%} of the time, until the update."
    ]
    steady = of.steady_steps
    if steady:
        said.append(
            f"Ramp-up takes {_steps(steady.start)}, the steady state, in which all IPUs do both passes, "
            f"{_steps(len(steady))}, and ramp-down {_steps(of.steps - steady.stop)}."
        )
    said += [problem.words for problem in found[:MOST_TOLD]]
    if len(found) > MOST_TOLD:
        said.append(f"And {len(found) - MOST_TOLD} more rules are broken.")
    return " ".join(said)


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
