"""Hills beside each other, and the names of phases that take turns."""

from __future__ import annotations

from ipu_course.figures.floor_and_hill import PHASES, TAKING_TURNS, hills_beside
from ipu_course.lessons.memory_techniques.over_time import peak_in_words
from ipu_course.tile_over_time import Hill

KEPT = Hill(weights=10, state=20, code=5, live=[1, 3, 3, 1, 0], temporary=[2, 2, 9, 2, 1], limit=40,
            phases=["forward", "forward", "backward", "backward", "update"], names=list("abcde"))  # fmt: skip
AGAIN = Hill(weights=10, state=20, code=5, live=[1, 1, 2, 1, 2, 1, 0], temporary=[2] * 7, limit=40,
             phases=["forward", "forward", "recompute", "backward", "recompute", "backward", "update"],
             names=list("abcdefg"))  # fmt: skip


def test_hills_share_one_scale_and_have_their_names() -> None:
    figure = hills_beside({"kept": KEPT, "again": AGAIN})
    left, right = figure.axes
    assert left.get_ylim() == right.get_ylim()
    assert left.get_ylim()[1] > 47
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["kept (modelled)", "again (modelled)"]


def test_phases_that_take_turns_have_one_name() -> None:
    left, right = hills_beside({"kept": KEPT, "again": AGAIN}).axes
    written = [[text.get_text() for text in axes.texts] for axes in (left, right)]
    assert "backward" in written[0]
    assert written[1].count(PHASES[TAKING_TURNS]) == 1
    assert "backward" not in written[1]


def test_the_peak_in_words() -> None:
    assert peak_in_words(KEPT).startswith("47 KiB at the peak, during c (backward): 35 always live, 3 of results")
