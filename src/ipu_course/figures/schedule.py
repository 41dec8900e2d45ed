"""The schedule of a pipeline: who does what in which step."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import ScaledTranslation

from ipu_course.figures.style import BACKWARD_LOOK, BLUE, GREY, INK, in_style, new_figure
from ipu_course.schedule import FORWARD, Pass, Schedule

MOST_LABELLED_STEPS = 20
HALF_ROW = 0.4
UPDATE_WIDTH = 0.03  # of the whole schedule
KEYS_BELOW_INCHES = -0.45


def schedule_figure(schedule: Schedule, title: str) -> Figure:
    """Who does what in which pipeline step: a row for each IPU, two halves in each step.

    Forward passes are dark, backward passes light and hatched, idle time is grey; the first micro-batch has a
    thick frame. Where there is a steady state, brackets name the three phases.
    """
    with in_style():
        figure, axes = new_figure(1.4 + 0.42 * schedule.stages)
        _draw_rows(axes, schedule)
        for each in schedule.passes:
            _draw_pass(axes, each, labelled=schedule.steps <= MOST_LABELLED_STEPS)
        _draw_phases(axes, schedule)
        _label_schedule(axes, schedule, title)
        _draw_keys(figure, axes)
    return figure


def _draw_rows(axes: Axes, schedule: Schedule) -> None:
    for stage in range(schedule.stages):
        bottom = stage - HALF_ROW
        axes.add_patch(Rectangle((0, bottom), schedule.steps, 2 * HALF_ROW, facecolor=GREY))
    for step in range(1, schedule.steps):
        axes.plot([step, step], [-0.5, schedule.stages - 0.5], color="white", linewidth=1.5, zorder=1.5)
    update, width = (schedule.steps + 0.1, -HALF_ROW), UPDATE_WIDTH * schedule.steps
    height = schedule.stages - 1 + 2 * HALF_ROW
    axes.add_patch(Rectangle(update, width, height, facecolor="white", edgecolor=INK))
    middle = (update[0] + width / 2, (schedule.stages - 1) / 2)
    axes.text(*middle, "weight update", rotation=90, ha="center", va="center", fontsize=8.5)


def _draw_pass(axes: Axes, each: Pass, labelled: bool) -> None:
    forward, first = each.direction == FORWARD, each.micro_batch == 0
    corner = (each.half_step / 2, each.stage - HALF_ROW)
    look = {"facecolor": BLUE, "edgecolor": "white"} if forward else BACKWARD_LOOK
    axes.add_patch(Rectangle(corner, 0.5, 2 * HALF_ROW, linewidth=0.6, zorder=2, **look))
    if first:
        axes.add_patch(Rectangle(corner, 0.5, 2 * HALF_ROW, fill=False, edgecolor="black", linewidth=2.2, zorder=4))
    if labelled:
        text = f"{'F' if forward else 'B'}{each.micro_batch + 1}"
        colour = "white" if forward else "black"
        middle = (corner[0] + 0.25, each.stage)
        axes.text(*middle, text, ha="center", va="center", fontsize=8, color=colour, zorder=5)


def _draw_phases(axes: Axes, schedule: Schedule) -> None:
    steady = schedule.steady_steps
    if not steady:
        return
    borders = (0, steady.start, steady.stop, schedule.steps)
    bracket = {"arrowstyle": "|-|,widthA=0.25,widthB=0.25", "color": INK, "shrinkA": 1, "shrinkB": 1}
    for name, begin, end in zip(("ramp-up", "steady state", "ramp-down"), borders, borders[1:]):
        axes.annotate("", (begin, -0.72), (end, -0.72), arrowprops=bracket)
        axes.text(
            (begin + end) / 2,
            -0.85,
            f"{name}: {end - begin} step{'' if end - begin == 1 else 's'}",
            ha="center",
            va="bottom",
        )
    for border in (steady.start, steady.stop):
        axes.plot([border] * 2, [-0.72, schedule.stages - 0.5], color=INK, linestyle="--", linewidth=1, zorder=3)


def _label_schedule(axes: Axes, schedule: Schedule, title: str) -> None:
    axes.set_title(title)
    axes.set_xlim(-0.05, (1 + UPDATE_WIDTH) * schedule.steps + 0.15)
    axes.set_ylim(schedule.stages - 0.45, -1.25 if schedule.steady_steps else -0.55)
    axes.set_yticks(range(schedule.stages), [f"IPU {stage}" for stage in range(schedule.stages)])
    apart = 1 if schedule.steps <= MOST_LABELLED_STEPS else 10
    steps = range(apart, schedule.steps + 1, apart)
    axes.set_xticks([step - 0.5 for step in steps], [str(step) for step in steps])
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("pipeline step (an order of work, not a time)")


def _draw_keys(figure: Figure, axes: Axes) -> None:
    corner = (0.0, 0.0)
    keys = [
        Rectangle(corner, 1, 1, facecolor=BLUE, label="F1: forward pass, micro-batch 1"),
        Rectangle(corner, 1, 1, label="B1: its backward pass", **BACKWARD_LOOK),
        Rectangle(corner, 1, 1, facecolor=GREY, label="idle"),
        Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=2.2, label="way of micro-batch 1"),
    ]
    # Below the axis label, at a distance in inches that does not depend on the number of rows.
    place = axes.transAxes + ScaledTranslation(0, KEYS_BELOW_INCHES, figure.dpi_scale_trans)
    look: Any = {"ncol": len(keys), "frameon": False, "fontsize": 9}
    axes.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=place, **look)
