"""Links between lessons are made by the build: a lesson that is renamed changes in one place."""

from __future__ import annotations

from pathlib import Path

import pytest
from notebooks_support import LESSONS, each_lesson, write_lesson

from notebook_build.assemble import assemble
from notebook_build.errors import SourceError
from notebook_build.lesson import LessonSource, read_cells
from notebook_build.links import linked, unlinked

TEXT = "See [lesson 05](05), [its end](05#summary) and [a page](../docs/page.md).\n\n**Next:** Loading is slow."
BUILT = (
    "See [lesson 05](05_loading.ipynb), [its end](05_loading.ipynb#summary) and [a page](../docs/page.md).\n\n"
    "**Next:** [lesson 05](05_loading.ipynb), *Loading: while the IPUs work*. Loading is slow."
)


@pytest.fixture
def first(tmp_path: Path) -> LessonSource:
    """Lesson 03 of a course whose other lesson is 05."""
    write_lesson(tmp_path, "# %% [markdown]\n# # Loading: while the IPUs work\n", "05_loading")
    return write_lesson(tmp_path)


def test_links_get_the_files_and_the_title_of_other_lessons(first: LessonSource) -> None:
    assert linked(TEXT, first) == BUILT
    assert unlinked(BUILT, first) == TEXT


def test_the_last_lesson_keeps_what_it_says(tmp_path: Path) -> None:
    text = "**Next:** The course ends here."
    assert linked(text, write_lesson(tmp_path)) == text


def test_a_link_written_by_hand_stays(first: LessonSource) -> None:
    text = "**Next:** [lesson 05](05_loading.ipynb) loads."
    assert linked(text, first) == text


def test_a_link_to_no_lesson_is_refused(first: LessonSource) -> None:
    with pytest.raises(SourceError, match="it links to lesson 42, and there is none"):
        linked("[lesson 42](42)", first)


def test_code_has_no_links(tmp_path: Path) -> None:
    lesson = write_lesson(tmp_path, "# %%\nprint('[lesson 42](42)')\n")
    assert "(42)" in assemble(lesson).cells[0].source


@each_lesson
def test_links_of_every_lesson_come_back_from_its_notebook(lesson: LessonSource) -> None:
    for cell in read_cells(lesson):
        if cell.kind == "markdown":
            built = linked(cell.text, lesson)
            assert linked(unlinked(built, lesson), lesson) == built


def test_every_lesson_leads_on_to_the_next() -> None:
    for lesson, following in zip(LESSONS, LESSONS[1:]):
        assert f"]({following.notebook.name})" in assemble(lesson).cells[-1].source.split("**Next:**")[1]
