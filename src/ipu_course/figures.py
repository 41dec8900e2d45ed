"""The course's figures: one style, readable in print and without colour vision, each with its description."""

from __future__ import annotations

import io
from typing import Any, Sequence

import matplotlib
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter
from matplotlib.transforms import ScaledTranslation

from ipu_course.schedule import FORWARD, Pass, Schedule

# From Okabe and Ito's palette, whose colours stay apart for colour-blind readers. On grey paper the forward
# passes are dark and the backward passes light; hatching, letters and line styles say the same once more.
BLUE, YELLOW, ORANGE, GREEN = "#0072B2", "#F5D27A", "#D55E00", "#009E73"
INK, GREY, HATCH = "#333333", "#EBEBEB", "#D9A920"
LINE_STYLES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, ":", "^"))
# Any: matplotlib types the settings as one Literal of all their names, and older versions as plain strings.
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "hatch.linewidth": 0.8,
}
WIDTH_INCHES = 9.5
DOTS_PER_INCH = 160
SHOWN_WIDTH = 950
MOST_LABELLED_STEPS = 20
HALF_ROW = 0.4
UPDATE_WIDTH = 0.03  # of the whole schedule
NOTE_HEIGHT = 0.43
KEYS_BELOW_INCHES = -0.45


def show(figure: Figure, description: str) -> None:
    """Show a figure in the notebook, with ``description`` below it.

    The description is the picture's alternative text too, but few front ends hand that on to a screen reader:
    so it is there to read, for everybody.
    """
    image = {"alt": description, "width": SHOWN_WIDTH}
    _display({"image/png": png(figure), "text/plain": description}, {"image/png": image})
    caption = f"Figure: {description}"
    _display({"text/markdown": f"*{caption}*", "text/plain": caption}, {})


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG in the course's resolution."""
    with matplotlib.rc_context(STYLE):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight")
    return buffer.getvalue()


def _display(data: dict[str, Any], metadata: dict[str, Any]) -> None:
    display(data, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]  # IPython leaves it untyped


def schedule_figure(schedule: Schedule, title: str) -> Figure:
    """Who does what in which pipeline step: a row for each IPU, two halves in each step.

    Forward passes are dark, backward passes light and hatched, idle time is grey; the first micro-batch has a
    thick frame. Where there is a steady state, brackets name the three phases.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 1.4 + 0.42 * schedule.stages), layout="constrained")
        axes = figure.add_subplot()
        _draw_rows(axes, schedule)
        for each in schedule.passes:
            _draw_pass(axes, each, labelled=schedule.steps <= MOST_LABELLED_STEPS)
        _draw_phases(axes, schedule)
        _label_schedule(axes, schedule, title)
        _draw_keys(figure, axes)
    return figure


def utilisation_figure(stage_counts: Sequence[int], largest: int, marked: tuple[int, int]) -> Figure:
    """Utilisation of a pipeline against gradient accumulation, one line for each number of IPUs (at most 3).

    Each line starts at the smallest accumulation that PopTorch accepts and ends at ``largest``; ``marked`` is
    the point (IPUs, accumulation) that gets a label. Raises ``ValueError`` for more lines than styles.
    """
    if len(stage_counts) > len(LINE_STYLES):
        raise ValueError(f"{len(stage_counts)} lines asked for, but only {len(LINE_STYLES)} can be told apart")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 3.3), layout="constrained")
        axes = figure.add_subplot()
        for stages, style in zip(stage_counts, LINE_STYLES):
            _draw_utilisation(axes, stages, largest, style)
        _mark_point(axes, *marked)
        axes.text(
            largest - 0.5,
            NOTE_HEIGHT,
            "each line starts at 2N - 1, the smallest that PopTorch accepts",
            ha="right",
        )
        axes.set(xlim=(0, largest), ylim=(0.4, 1.0), ylabel="utilisation")
        axes.set_xlabel("gradient accumulation (micro-batches per weight update)")
        axes.set_title("Longer pipelines need more micro-batches to stay busy")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="y", color=GREY)
        axes.set_axisbelow(True)
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
    look = {"facecolor": BLUE, "edgecolor": "white"} if forward else _backward_look()
    axes.add_patch(Rectangle(corner, 0.5, 2 * HALF_ROW, linewidth=0.6, zorder=2, **look))
    if first:
        axes.add_patch(Rectangle(corner, 0.5, 2 * HALF_ROW, fill=False, edgecolor="black", linewidth=2.2, zorder=4))
    if labelled:
        text = f"{'F' if forward else 'B'}{each.micro_batch + 1}"
        colour = "white" if forward else "black"
        middle = (corner[0] + 0.25, each.stage)
        axes.text(*middle, text, ha="center", va="center", fontsize=8, color=colour, zorder=5)


def _backward_look() -> dict[str, Any]:
    return {"facecolor": YELLOW, "edgecolor": HATCH, "hatch": "////"}


def _draw_phases(axes: Axes, schedule: Schedule) -> None:
    steady = schedule.steady_steps
    if not steady:
        return
    borders = (0, steady.start, steady.stop, schedule.steps)
    bracket = {"arrowstyle": "|-|,widthA=0.25,widthB=0.25", "color": INK, "shrinkA": 1, "shrinkB": 1}
    for name, begin, end in zip(("ramp-up", "steady state", "ramp-down"), borders, borders[1:]):
        axes.annotate("", (begin, -0.72), (end, -0.72), arrowprops=bracket)
        axes.text((begin + end) / 2, -0.85, f"{name}: {end - begin} steps", ha="center", va="bottom")
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
        Rectangle(corner, 1, 1, label="B1: its backward pass", **_backward_look()),
        Rectangle(corner, 1, 1, facecolor=GREY, label="idle"),
        Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=2.2, label="way of micro-batch 1"),
    ]
    # Below the axis label, at a distance in inches that does not depend on the number of rows.
    place = axes.transAxes + ScaledTranslation(0, KEYS_BELOW_INCHES, figure.dpi_scale_trans)
    look: Any = {"ncol": len(keys), "frameon": False, "fontsize": 9}
    axes.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=place, **look)


def _draw_utilisation(axes: Axes, stages: int, largest: int, style: tuple[str, str, str]) -> None:
    colour, dashes, marker = style
    counts = range(2 * stages - 1, largest + 1)
    shares = [_utilisation(stages, count) for count in counts]
    axes.plot(counts, shares, color=colour, linestyle=dashes, linewidth=2)
    axes.plot(counts[0], shares[0], marker, color=colour, markersize=7)
    axes.annotate(
        f"{stages} IPUs",
        (largest, shares[-1]),
        (6, 0),
        textcoords="offset points",
        annotation_clip=False,
        va="center",
        color=colour,
        fontweight="bold",
    )


def _mark_point(axes: Axes, stages: int, count: int) -> None:
    share = _utilisation(stages, count)
    axes.plot(count, share, "D", color=INK, markersize=6)
    text = f"{stages} IPUs, {count} micro-batches: {100 * share:.1f} %"
    axes.annotate(text, (count, share), (count, NOTE_HEIGHT), ha="center", arrowprops={"arrowstyle": "-"})


def _utilisation(stages: int, micro_batches: int) -> float:
    return micro_batches / (micro_batches + 2 * (stages - 1))
