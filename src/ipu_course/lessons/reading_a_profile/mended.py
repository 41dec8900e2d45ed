"""The three programs after their mends: how much faster, on a roofline, and with remedies for other limits."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ipu_course import engine, show
from ipu_course.figures.roofline import Roof, RooflinePoint, roofline
from ipu_course.figures.style import in_style
from ipu_course.lessons.reading_a_profile.slow_programs import (
    LENGTH,
    PHOTOGRAPHS_ACCUMULATED,
    RECORD_SIZE,
    RECORDS_ACCUMULATED,
    SECONDS_PER_PHOTOGRAPH,
    SENTENCES_ACCUMULATED,
    SIDE,
    WORKERS,
    begin,
    begin_projection,
    captured_photographs,
    captured_records,
    captured_sentences,
    loading,
    sentences,
)
from ipu_course.lessons.reading_a_profile.written_report import compare_reports
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.figures import Drawing
    from ipu_course.lessons.reading_a_profile.slow_programs import SlowPrograms

ENOUGH_WORKERS = 16
SHORTER_LAST = (4, 8)  # and the projection alone on the last IPU
# Bytes of a sample on its way to the IPU: 16-bit pixels, two rows of 32-bit words, 16-bit numbers; labels of 32 bits.
SENT = {"A": 3 * SIDE * SIDE * 2 + 4, "B": 2 * LENGTH * 4, "C": RECORD_SIZE * 2 + 4}
TERA = 1e12


class Mended(NamedTuple):
    """The profiles of the three programs after the mends of this lesson."""

    a: Profile
    b: Profile
    c: Profile


def projection_alone(model: Any) -> None:
    """Cut program B so that its last IPU computes nothing but the projection to words."""
    for ipu, layer in enumerate(SHORTER_LAST, 1):
        begin(model, layer, ipu)
    begin_projection(model, len(SHORTER_LAST) + 1)


@engine.needs_the_model
def mend_all() -> Mended:
    """Return the three programs with the mends of this lesson's solution."""
    return _mended()


@lru_cache(maxsize=1)
def _mended() -> Mended:
    return Mended(
        captured_photographs().profile(host=loading(ENOUGH_WORKERS)),
        sentences(projection_alone).profile(),
        captured_records().profile(optimiser_off_chip=False),
    )


def compare_c(programs: SlowPrograms, mended: Mended) -> None:
    """Print what ``python -m ipu_model compare`` says of program C and of its mend."""
    if programs is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    compare_reports(programs.c.profile, mended.c)


def show_mended(programs: SlowPrograms, mended: Mended) -> None:
    """Show how much faster each program is with its mend, and with twice the accumulation."""
    if programs is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    twice = (
        captured_photographs().profile(host=loading(), gradient_accumulation=2 * PHOTOGRAPHS_ACCUMULATED),
        captured_sentences().profile(gradient_accumulation=2 * SENTENCES_ACCUMULATED),
        captured_records().profile(gradient_accumulation=2 * RECORDS_ACCUMULATED),
    )
    show.table(
        [
            {
                "program (modelled)": each.name,
                "samples/s as it is": f"{each.profile.samples_per_second:,.0f}",
                "with twice the accumulation": _times(each.profile, doubled),
                "mended, samples/s": f"{after.samples_per_second:,.0f}",
                "with its mend": _times(each.profile, after),
            }
            for each, doubled, after in zip(programs, twice, mended)
        ],
        index="program (modelled)",
    )


def _times(before: Profile, after: Profile) -> str:
    return f"{after.samples_per_second / before.samples_per_second:.2f} x"


def show_roofline(programs: SlowPrograms, mended: Mended) -> None:
    """Show the three programs under the roofs of program A's loader and of the host link, and A after its mend."""
    if programs is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    drawn = program_roofline(programs, mended)
    show.drawing(drawn, "Program A stands on its loader's roof. No roof explains why B and C are so low.")


def program_roofline(programs: SlowPrograms, mended: Mended) -> Drawing:
    """Draw what each IPU reaches, over the operations for each byte that is sent to it."""
    rate = SENT["A"] / SECONDS_PER_PHOTOGRAPH
    link = Roof("host link of one IPU", link_bytes_per_second(programs.a.profile))
    few = Roof(f"A's loader, {WORKERS} workers", WORKERS * rate)
    enough = Roof(f"A's loader, {ENOUGH_WORKERS} workers", ENOUGH_WORKERS * rate)
    shown = (
        ("A", programs.a.profile, few), ("B", programs.b.profile, link), ("C", programs.c.profile, link),
        ("A mended", mended.a, enough),
    )  # fmt: skip
    points = [
        RooflinePoint(name, flops_per_sample(profile) / SENT[name[0]], reached(profile), roof=roof)
        for name, profile, roof in shown
    ]
    roofs = (link, few, enough)
    drawn = roofline(points, peak=peak(programs.a.profile), roofs=roofs, peak_name="matrix units of one IPU")
    with in_style():
        drawn.figure.axes[0].set_title("What each IPU of the programs reaches (modelled)")
    return drawn


def flops_per_sample(profile: Profile) -> float:
    """Return the operations of all products and convolutions for one sample."""
    return profile.flops_per_call / profile.samples_per_call


def reached(profile: Profile) -> float:
    """Return the operations a second that each IPU of a program reaches, end to end."""
    return profile.flops_per_call / profile.call_seconds / len(profile.cycles)


def peak(profile: Profile) -> float:
    """Return the most operations a second that the matrix units of one IPU can do in half precision."""
    return max(op.peak_flops_per_cycle for op in profile.work) * profile.machine.clock_hz


def link_bytes_per_second(profile: Profile) -> float:
    """Return the bytes a second that program A's inputs reach while they are transferred."""
    seconds = engine.phases(profile)["StreamCopyMid"][0] / profile.machine.clock_hz
    return SENT["A"] * profile.samples_per_call / seconds
