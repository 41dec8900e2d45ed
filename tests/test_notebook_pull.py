"""Edits of a notebook go back into the lesson's source: whatever is taken back, the build makes that notebook of it."""

from __future__ import annotations

import random
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from notebooks_support import LESSON, each_lesson, places, write_lesson

from ipu_course.programs.lab.copies import make_copies
from notebook_build.__main__ import main
from notebook_build.assemble import assemble
from notebook_build.errors import SourceError
from notebook_build.lesson import LessonSource
from notebook_build.pull import content, pull


@pytest.fixture
def lesson(tmp_path: Path) -> LessonSource:
    """LESSON and its notebook, not executed."""
    return with_notebook(write_lesson(tmp_path, LESSON))


def with_notebook(lesson: LessonSource) -> LessonSource:
    nbformat.write(assemble(lesson), lesson.notebook)
    return lesson


def edit(lesson: LessonSource, place: int, old: str, new: str) -> None:
    """Replace a text in one cell of the notebook."""
    notebook = nbformat.read(lesson.notebook, as_version=4)
    assert old in notebook.cells[place].source
    notebook.cells[place].source = notebook.cells[place].source.replace(old, new)
    nbformat.write(notebook, lesson.notebook)


def cells_of(notebook: NotebookNode) -> list[object]:
    return [content(cell) for cell in notebook.cells]


@each_lesson
def test_an_unedited_notebook_changes_nothing(lesson: LessonSource, tmp_path: Path) -> None:
    nbformat.write(assemble(lesson), tmp_path / "edited.ipynb")
    before = lesson.source.read_bytes()
    assert pull(lesson, tmp_path / "edited.ipynb").startswith("nothing to take back")
    assert lesson.source.read_bytes() == before


def test_an_edited_cell_changes_its_lines_only(lesson: LessonSource) -> None:
    edit(lesson, 1, "total = 1 + 1", "total = 2\ntotal += 1")
    edit(lesson, 0, "# A lesson", "# A lesson\n\nWith a text.")
    assert pull(lesson, lesson.notebook) == "2 edited"
    expected = LESSON.replace("total = 1 + 1", "total = 2\ntotal += 1")
    assert lesson.source.read_text() == expected.replace("# # A lesson", "# # A lesson\n#\n# With a text.")


def test_an_exercise_keeps_its_solution_when_what_stands_around_it_is_edited(lesson: LessonSource) -> None:
    edit(lesson, 3, "def doubled(value):", "def doubled(value):  # twice")
    edit(lesson, 4, "Multiply.", "Multiply it.")
    edit(lesson, 5, "Twice is", "Twice is exactly")
    assert pull(lesson, lesson.notebook) == "3 edited"
    expected = LESSON.replace("doubled(value):", "doubled(value):  # twice").replace("Multiply.", "Multiply it.")
    assert lesson.source.read_text() == expected.replace("Twice is", "Twice is exactly")


def test_code_edited_in_the_folded_solution_is_the_new_solution(lesson: LessonSource) -> None:
    edit(lesson, 5, "result = 2 * value", "result = value\nresult += value")
    pull(lesson, lesson.notebook)
    expected = LESSON.replace("    result = 2 * value", "    result = value\n    result += value")
    assert lesson.source.read_text() == expected


def test_cells_are_added_moved_and_deleted(lesson: LessonSource) -> None:
    notebook = nbformat.read(lesson.notebook, as_version=4)
    first, _, *others, last = notebook.cells
    last["id"] = "pasted"  # as after cut and paste
    notebook.cells = [
        first,
        last,
        new_markdown_cell("## New\n\nText."),
        *others,
        new_code_cell("x = 1\n\n"),
        new_code_cell(),
    ]
    nbformat.write(notebook, lesson.notebook)
    before = lesson.source.read_bytes()
    with pytest.raises(SourceError, match="cell 2: total = 1"):
        pull(lesson, lesson.notebook)
    assert lesson.source.read_bytes() == before
    assert pull(lesson, lesson.notebook, delete=True) == "2 added, 1 deleted, order changed"
    assert cells_of(assemble(lesson)) == [content(cell) for cell in notebook.cells[:-1]]


def test_a_learners_copy_gives_its_edits_back(tmp_path: Path) -> None:
    text = LESSON.replace("# ## Exercise", "# ## Exercise\n#\n# See [lesson 05](05) and ![docs](../docs/page.md).")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("page")
    (tmp_path / "notebooks").mkdir()
    write_lesson(tmp_path, "# %% [markdown]\n# # Other\n", "05_other")
    source = write_lesson(tmp_path, text).source
    lesson = with_notebook(LessonSource(source, tmp_path / "notebooks" / "03_small_lesson.ipynb"))
    (copy,) = make_copies(tmp_path / "notebooks", tmp_path / "mine").made
    assert pull(lesson, copy).startswith("nothing to take back")
    copy.write_text(copy.read_text().replace("## Exercise", "## An exercise"))
    assert pull(lesson, copy) == "1 edited"
    assert source.read_text() == text.replace("## Exercise", "## An exercise")
    with pytest.raises(SourceError, match="the copy of another version"):
        pull(lesson, copy)


@pytest.mark.parametrize(
    ("place", "old", "new", "message"),
    [
        (3, "result = ...", "result = 2 * value", "exercise 1 has another starter than the source"),
        (3, "result = ...", "result = ...\n    result = ...", "exercise 1 has another starter"),
        (4, "<details>", "", "is tagged hint and is no longer folded"),
        (5, "```python", "```", "is a solution and no longer begins with its code"),
        (1, "total = 1 + 1", "total = 2\n# %%\nx = 1", "would come out of the build differently"),
        (0, "# A lesson", "# A lesson, see [42](42)", "it links to lesson 42"),
    ],
)
def test_what_cannot_be_taken_back_changes_nothing(
    lesson: LessonSource, place: int, old: str, new: str, message: str
) -> None:
    edit(lesson, place, old, new)
    edit(lesson, 6, "12.5", "13.5")
    with pytest.raises(SourceError, match=message):
        pull(lesson, lesson.notebook)
    assert lesson.source.read_text() == LESSON


def test_a_notebook_of_another_version_of_the_source_is_refused(lesson: LessonSource) -> None:
    newer = LESSON.replace("total = 1 + 1", "total = 2")
    lesson.source.write_text(newer)
    with pytest.raises(SourceError, match="cell 2 was built from another version"):
        pull(lesson, lesson.notebook, delete=True)
    assert lesson.source.read_text() == newer


def test_the_command_names_lesson_and_notebook(
    lesson: LessonSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(lesson, 1, "1 + 1", "2")
    assert main(["pull", "03", *places(tmp_path)]) == 0
    assert capsys.readouterr().out == "03_small_lesson: 1 edited\n"
    assert main(["pull", "03", str(tmp_path / "none.ipynb"), *places(tmp_path)]) == 1
    assert "cannot be read as a notebook" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["pull", *places(tmp_path)])


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]) | st.just("\n"), max_size=40)


@given(seed=st.integers(0, 2**32), texts=st.lists(TEXTS, max_size=4), moves=st.integers(0, 2), drops=st.integers(0, 2))
def test_random_edits_come_out_of_the_build_or_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, seed: int, texts: list[str], moves: int, drops: int
) -> None:
    """Whatever was edited: the source builds the edited notebook, or it is refused and stays as it was."""
    lesson = with_notebook(write_lesson(tmp_path_factory.mktemp("pulled"), LESSON))
    notebook, chance = nbformat.read(lesson.notebook, as_version=4), random.Random(seed)
    for text in texts:
        if chance.random() < 0.5:
            chance.choice(notebook.cells).source += text
        else:
            cell = new_markdown_cell(text) if chance.random() < 0.5 else new_code_cell(text)
            notebook.cells.insert(chance.randint(0, len(notebook.cells)), cell)
    for _ in range(moves):
        cell = notebook.cells.pop(chance.randrange(len(notebook.cells)))
        notebook.cells.insert(chance.randint(0, len(notebook.cells)), cell)
    for _ in range(drops):
        notebook.cells.pop(chance.randrange(len(notebook.cells)))
    nbformat.write(notebook, lesson.notebook)
    wanted = [content(cell) for cell in nbformat.read(lesson.notebook, as_version=4).cells if cell.source.strip()]
    try:
        pull(lesson, lesson.notebook, delete=True)
    except SourceError:
        assert lesson.source.read_text() == LESSON
    else:
        assert cells_of(assemble(lesson)) == wanted
