"""The first steps of a profiled program, as a figure and a table in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from ipu_course import engine, figures, show
from ipu_course.lessons.start_here.steps_figure import Step, steps_figure

if TYPE_CHECKING:
    from ipu_course.engine import Profile

MICROSECONDS = 1e6


def first_steps(profile: Profile, ipu: int, count: int) -> list[Step]:
    """The first ``count`` operations of one IPU's forward pass, with the modelled time of their parts."""
    ops = [op for op in profile.ops if op.ipu == ipu and op.phase == "forward"][:count]
    unit = MICROSECONDS / profile.machine.clock_hz
    return [
        Step(
            f"{number}: {_plain(op.target)}",
            op.on_tile_execute * unit,
            op.do_exchange * unit,
            op.internal_sync * unit,
        )
        for number, op in enumerate(ops, start=1)
    ]


def show_steps(profile: Profile | None, ipu: int, first: int) -> None:
    """Show the ``first`` operations of one IPU: how long tiles compute, exchange and synchronise (modelled)."""
    if not profile:
        print(engine.NOT_HERE)
        return
    steps = first_steps(profile, ipu, first)
    title = f"The first {first} operations on IPU {ipu} (modelled)"
    figures.show(steps_figure(steps, title), _description(steps, ipu))
    show.table([_row(step) for step in steps], index="operation")


def _plain(target: str) -> str:
    """PyTorch's internal name of an operation as a reader says it."""
    name = target.split(".")[1] if target.startswith("aten.") else target
    return name.replace("native_", "").replace("_with_indices", "").strip("_").replace("_", " ")


def _description(steps: Sequence[Step], ipu: int) -> str:
    longest = max(steps, key=lambda step: step.compute)
    shares = [sum(getattr(step, part) for step in steps) for part in ("compute", "exchange", "synchronise")]
    total = sum(shares)
    return (
        f"One row for each of the first {len(steps)} operations on IPU {ipu}, modelled. Together they spend "
        f"{shares[0] / total:.0%} of their time computing, {shares[1] / total:.0%} exchanging and "
        f"{shares[2] / total:.0%} synchronising; the longest is {longest.name}."
    )


def _row(step: Step) -> dict[str, object]:
    return {
        "operation": step.name,
        "compute, µs": f"{step.compute:.1f}",
        "exchange, µs": f"{step.exchange:.1f}",
        "synchronise, µs": f"{step.synchronise:.2f}",
    }
