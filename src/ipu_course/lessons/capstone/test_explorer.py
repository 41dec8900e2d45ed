"""Lesson 17's explorer: every decision has a picture, and the best plan stands in each."""

from __future__ import annotations

import pytest

from ipu_course.lessons.capstone import lesson
from ipu_course.lessons.capstone.plan_results import stored_plans
from ipu_course.lessons.capstone.transformer import BASE, LARGE, TransformerSize


@pytest.mark.parametrize("size", [BASE, LARGE], ids=lambda size: size.name)
def test_every_decision_shows_the_best_plan(size: TransformerSize) -> None:
    every = stored_plans(size)
    best = f"{every.best.sequences_per_second:,.0f}"
    for state in lesson.explorers[0].states():
        view = lesson.explorers[0].view(every, **state)
        assert view.figure is not None
        assert len(view.description.split()) > 10
        assert best in view.description
        assert any(best in row.values() for row in view.rows)


def test_the_caption_names_no_answer() -> None:
    every = stored_plans(BASE)
    for state in lesson.explorers[0].states():
        assert not any(letter.isdigit() for letter in lesson.explorers[0].view(every, **state).takeaway)
