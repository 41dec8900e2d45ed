"""One pass, op by op, as bulk-synchronous steps: exchange, compute, synchronise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ipu_course import engine, show
from ipu_course.figures.looks import COMPUTE, EXCHANGE, SYNC
from ipu_course.figures.style import in_style, new_figure, only_grid, rows_named
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.lessons.reading_a_profile.slow_programs import SlowPrograms

PART_OF_A = "model.layer2.1."
PARTS = {"exchange between tiles": EXCHANGE, "compute": COMPUTE, "synchronisation": SYNC}


def first_block(profile: Profile, part: str = PART_OF_A) -> list[tuple[str, float, float, float]]:
    """Return the ops of one block's forward pass in order: name, cycles of exchange, of compute and of syncs."""
    return [
        (op.name.removeprefix(part), op.do_exchange, op.on_tile_execute, op.internal_sync)
        for op in profile.ops
        if op.phase == "forward" and op.name.startswith(part)
    ]


def show_steps(programs: SlowPrograms) -> None:
    """Show the forward pass of one block of program A, op by op."""
    if programs is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    ops = first_block(programs.a.profile)
    sums = [sum(each) for each in list(zip(*(cycles for _, *cycles in ops)))]
    told = "; ".join(f"{name}: {exchange:,.0f}, {compute:,.0f}, {sync:,.0f}" for name, exchange, compute, sync in ops)
    show.figure(
        steps_figure(ops),
        "All tiles take these steps together: they synchronise before each exchange.",
        f"The forward pass of a block of program A over time, op by op; cycles of exchange, compute and "
        f"synchronisation, modelled: {told}. In all {sums[0]:,.0f}, {sums[1]:,.0f} and {sums[2]:,.0f}.",
    )


def steps_figure(ops: Sequence[tuple[str, float, float, float]]) -> Figure:
    """Draw one row for each op, over the cycles since the block's begin."""
    with in_style():
        figure, axes = new_figure(1.5 + 0.3 * len(ops))
        start = 0.0
        for row, (_, *cycles) in enumerate(ops):
            for each, look in zip(cycles, PARTS.values()):
                if each:
                    axes.barh(row, each, left=start, height=0.7, **look.area())
                start += each
        rows_named(axes, [name for name, *_ in ops])
        axes.set(xlabel="cycles since the block begins", title="Forward pass of one block of program A (modelled)",
                 xlim=(0, start))  # fmt: skip
        axes.xaxis.set_major_formatter("{x:,.0f}")
        only_grid(axes, "x")
        figure.legend(handles=[Patch(label=name, **look.area()) for name, look in PARTS.items()],
                      loc="outside lower center", ncol=len(PARTS), frameon=False)  # fmt: skip
    return figure
