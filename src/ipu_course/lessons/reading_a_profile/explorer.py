"""Lesson 14's explorer: three programs, and three pictures of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import engine
from ipu_course.explorers import Choice, Explorer, View
from ipu_course.lessons.reading_a_profile.bottleneck_words import MILLISECONDS

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.lessons.reading_a_profile.slow_programs import SlowPrograms

HOST, TIMELINE, CYCLES = "host and device", "timeline", "cycles"
PICTURES = {"host and device": HOST, "the execution trace": TIMELINE, "cycles by phase": CYCLES}
READING = {
    HOST: "Who waits, the device or the host?",
    TIMELINE: "Which IPU works most, at what, and who waits for it?",
    CYCLES: "Each phase has its share of every IPU's cycles.",
}


def trace_view(programs: SlowPrograms, program: str, picture: str) -> View:
    """Show one picture of a program with its numbers in a table."""
    chosen = programs.named(program)
    drawn, words = engine.figure(picture, chosen.profile)
    rows = {HOST: host_rows, TIMELINE: work_rows, CYCLES: cycle_rows}[picture](chosen.profile)
    return View(
        drawn,
        takeaway=f"Program {program}: {chosen.what}. {READING[picture]}",
        description=f"{words.rstrip('.')} (modelled).",
        rows=rows,
    )


def host_rows(profile: Profile) -> list[dict[str, object]]:
    """Return the milliseconds of a call on host and device."""
    load = sum(span.seconds for span in profile.timeline if span.kind == "load")
    return [
        {
            "ms of one call, modelled": "",
            "loading, all workers together": _ms(load) if load else "none",
            "PopTorch's part of the call": _ms(profile.host_seconds_per_call - load),
            "the device": _ms(profile.device_seconds_per_call),
            "a call starts every": _ms(profile.call_seconds),
        }
    ]


def work_rows(profile: Profile) -> list[dict[str, object]]:
    """Return the milliseconds of a call that each IPU spends on each kind of work."""
    spent: dict[str, dict[int, float]] = {}
    for span in profile.timeline:
        if span.ipu is not None:
            own = spent.setdefault(span.kind, {})
            own[span.ipu] = own.get(span.ipu, 0.0) + span.seconds
    return [
        {
            "ms of one call, modelled": kind,
            **{f"IPU {ipu}": _ms(own.get(ipu, 0.0)) for ipu in range(len(profile.cycles))},
        }
        for kind, own in spent.items()
    ]


def cycle_rows(profile: Profile) -> list[dict[str, object]]:
    """Return the share of each phase in the cycles of every IPU."""
    cycles = engine.phases(profile)
    whole = [sum(each) for each in zip(*cycles.values())]
    return [
        {"phase": name, **{f"IPU {ipu}": f"{each / whole[ipu]:.1%}" for ipu, each in enumerate(own)}}
        for name, own in cycles.items()
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * MILLISECONDS:,.2f}"


TRACES = Explorer(
    controls={
        "program": Choice("program", {name: name for name in "ABC"}, "A"),
        "picture": Choice("picture", PICTURES, CYCLES),
    },
    view=trace_view,
)
