"""The package's list of lessons, compared with the notebooks' sources."""

from __future__ import annotations

import pytest

from ipu_course.lessons import LESSONS, Lesson
from notebook_build.assemble import exercises_of
from notebook_build.lesson import lessons, read_cells


def test_numbers_follow_each_other() -> None:
    assert [lesson.number for lesson in LESSONS] == [f"{place:02}" for place in range(len(LESSONS))]


def test_every_notebook_is_in_the_list_of_lessons() -> None:
    assert {lesson.name for lesson in lessons()} <= {f"{lesson.number}_{lesson.slug}" for lesson in LESSONS}


@pytest.mark.parametrize("listed", LESSONS, ids=lambda lesson: lesson.number)
def test_the_list_of_lessons_is_that_of_the_notebooks(listed: Lesson) -> None:
    sources = {lesson.name: lesson for lesson in lessons()}
    name = f"{listed.number}_{listed.slug}"
    if name not in sources:
        pytest.skip(f"notebooks/source/{name}.py does not exist yet")
    title = read_cells(sources[name])[0].text.splitlines()[0]
    assert title == f"# {listed.title}"
    assert len(exercises_of(sources[name])) == listed.exercises
