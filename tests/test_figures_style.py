"""The course's figures and those of the engine's reports look alike, though neither imports the other."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb

import ipu_course
from ipu_course.figures import looks as course_looks
from ipu_course.figures import style as course_style
from ipu_course.figures.profiles import PHASE_LOOKS
from ipu_model.predict.profile import SPAN_KINDS
from ipu_model.report import looks
from ipu_model.report.breakdown import PHASE_NAMES

PACKAGE = Path(ipu_course.__file__).parent
COLOURS = ("BLUE", "YELLOW", "ORANGE", "GREEN", "INK", "GREY", "HATCH")


def test_both_have_the_same_colours() -> None:
    assert {name: getattr(looks, name) for name in COLOURS} == {name: getattr(course_style, name) for name in COLOURS}


def test_forward_passes_and_waiting_look_the_same_in_both() -> None:
    assert looks.SPAN_LOOKS["forward"].face == course_style.BLUE
    assert looks.SPAN_LOOKS["wait"].face == course_style.GREY


def test_what_happens_over_time_has_one_look_in_the_course_and_in_reports() -> None:
    of_the_course = {
        "forward": course_looks.FORWARD,
        "recompute": course_looks.RECOMPUTE,
        "backward": course_looks.BACKWARD,
        "update": course_looks.UPDATE,
        "wait": course_looks.WAIT,
        "load": course_looks.LOAD,
        "call": course_looks.CALL,
    }
    assert {name: tuple(looks.SPAN_LOOKS[name]) for name in of_the_course} == {
        name: tuple(look) for name, look in of_the_course.items()
    }


def luminance(colour: str) -> float:
    """Return how light a colour is on grey paper (Rec. 709)."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("table", [looks.SPAN_LOOKS, looks.FAMILY_LOOKS, PHASE_LOOKS])
def test_looks_differ_on_grey_paper_by_lightness_or_hatching(table: dict[str, course_looks.Look]) -> None:
    assert set(SPAN_KINDS) <= set(looks.SPAN_LOOKS)
    assert set(PHASE_LOOKS) == set(PHASE_NAMES.values())
    together = {name: look for name, look in table.items() if name not in ("load", "call", "works")}
    for (name, look), (other, another) in itertools.combinations(together.items(), 2):
        lighter = abs(luminance(look.face) - luminance(another.face)) > 0.05
        assert lighter or look.hatch != another.hatch, (name, other)


def test_what_is_compared_looks_like_nothing_that_has_a_meaning() -> None:
    fillings = [look[:3] for name, look in vars(course_looks).items() if isinstance(look, course_looks.Look)]
    assert len(fillings) >= 15
    assert not set(fillings) & {look[:3] for look in course_looks.COMPARED}
    assert len(set(course_looks.COMPARED)) == 3


ONE_MEANING = ({"FORWARD", "COMPUTE"},)  # forward passes are the usual computation


def test_no_file_that_draws_uses_one_look_for_two_meanings() -> None:
    """Some looks of time and of memory are the same: backward passes and activations, for instance."""
    all_looks = {name: look for name, look in vars(course_looks).items() if isinstance(look, course_looks.Look)}
    drawing = [path for path in PACKAGE.rglob("*.py") if "figures.looks" in path.read_text(encoding="utf-8")]
    assert len(drawing) > 20
    for path in drawing:
        named = set(re.findall(r"\b[A-Z_]{3,}\b", path.read_text(encoding="utf-8"))) & all_looks.keys()
        for one, other in itertools.combinations(sorted(named), 2):
            assert all_looks[one] != all_looks[other] or {one, other} in ONE_MEANING, (path.name, one, other)
