"""The form of a lesson: one that keeps to it passes, and each departure is found. Limits: notebook_build/limits.py.

A departure is a piece of the good lesson's source, what stands there instead, and the finding.
"""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_output
from notebooks_support import places, write_lesson

from notebook_build.__main__ import main
from notebook_build.assemble import assemble
from notebook_build.errors import SourceError
from notebook_build.lesson import LessonSource
from notebook_build.lint import lint, output_findings

# 6 cells an exercise with its text, 24 in all; 14 paragraphs of 60 words are 840.
PARAGRAPH = "# " + "The exchange copies tensors from tile to tile. " * 7 + "It takes time.\n"
FIRST = """\
# %% [markdown]
# # A lesson
#
# *Plan 25 minutes, 10 of them for the exercises; the notebook itself runs in under one.*

# %%
from ipu_course.lessons.small_lesson import count_tiles, lesson

# %% [markdown]
# ## Predict
#
# The chip has many tiles [1], and [lesson 03](lessons/small_lesson/03_small_lesson.py) says more.

# %% tags=["prediction"]
guess = lesson.predict("tiles", ...)

# %%
guess.reveal(count_tiles(), "computed", published="tiles")

# %%
lesson.explore()
"""
EXERCISE = """
# %% [markdown]
# **Exercise {0}** (5 min). How many tiles?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: tiles = ...
tiles = 1472
### END SOLUTION
lesson.check({0}, tiles)

# %% [markdown] tags=["hint"]
# Count.

# %% [markdown] tags=["solution"]
# There are 1,472.
"""
LAST = """
# %% [markdown]
# ## Summary
#
# Tiles are many.
#
# ## On real hardware
#
# The same.
#
# ## What transfers
#
# Counting.
#
# ## References
#
# 1. Graphcore, *Programming guide*.
#
# **Next:** lesson 04.
"""
PARAGRAPHS = "".join(f"\n# %% [markdown]\n{PARAGRAPH}" for _ in range(14))
GOOD = FIRST + PARAGRAPHS + EXERCISE.format(1) + EXERCISE.format(2) + LAST

LONG_CELL = "\n# %%\n" + "".join(f"step_{each} = {each}\n\n" for each in range(16))


FIGURES = {"tiles": {"value": 1472, "text": "1,472 tiles", "kind": "published", "source": "[1]"}}


def written(folder: Path, source: str, name: str = "03_small_lesson", declared: str = "03") -> LessonSource:
    """Write a lesson with its package and its published figures, not built yet."""
    lesson = write_lesson(folder, source, name)
    (lesson.folder / "__init__.py").write_text(f"lesson = Lesson({declared!r})\n", encoding="utf-8")
    (lesson.folder / "published.json").write_text(json.dumps(FIGURES), encoding="utf-8")
    return lesson


def found(folder: Path, old: str = "", new: str = "") -> list[str]:
    """Return the findings on the good lesson with all of `old` replaced."""
    assert old in GOOD
    return lint(written(folder, GOOD.replace(old, new) if old else GOOD))


def test_a_lesson_in_the_form_passes(tmp_path: Path) -> None:
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("# ## Predict", "# # Predict", "2 headings of level 1, and there is one: the first"),
        ("# # A lesson", "# ## Before\n#\n# # A lesson", "1 headings of level 1, and there is one: the first"),
        ("# ## Predict", "# ### Predict", "heading 'Predict' goes down from level 1 to 3"),
        ("# ## On real hardware", "# ## Hardware", "the last sections are not Summary, On real hardware"),
        ("# ## What transfers\n#\n# Counting.\n#\n", "", "the last sections are not Summary, On real hardware"),
        ("# **Next:** lesson 04.", "# Lesson 04 is next.", "the last cell has no **Next:**"),
        ("# *Plan 25 minutes, 10 of", "# *About 25 minutes, 10 of", "the first cell has no 'Plan N minutes, M of them"),
        ("25 minutes, 10", "25 minutes, 20", "the plan has 20 minutes for the exercises, and theirs add up to 10"),
        ("25 minutes, 10", "10 minutes, 10", "a plan of 10 minutes leaves nothing beside the exercises' 10"),
        ("**Exercise 2** (5 min).", "**Exercise 2.**", "the cell before exercise 2 has no '**Exercise 2** (K min)'"),
        ("**Exercise 2**", "**Exercise 3**", "the cell before exercise 2 has no '**Exercise 2** (K min)'"),
        (EXERCISE.format(2), "", "1 exercises, not 2 to 5"),
        (EXERCISE.format(2), "".join(EXERCISE.format(each) for each in (2, 3, 4, 5, 6)), "6 exercises, not 2 to 5"),
        (PARAGRAPHS, "", "15 cells, not 20 to 35"),
        (LAST, "\n# %%\n1\n" * 12 + LAST, "41 cells, not 20 to 35"),
        (PARAGRAPH, "# Tiles.\n", " words, not 800 to 1500"),
        (PARAGRAPH, PARAGRAPH * 2, " words, not 800 to 1500"),
        ("many tiles [1]", "many tiles [7]", "the text cites [7], which is not in the references"),
        (
            "lessons/small_lesson/03_small_lesson.py",
            "04_missing.ipynb",
            "links to 04_missing.ipynb, which does not exist",
        ),
        ("[lesson 03](", "![](", "the picture lessons/small_lesson/03_small_lesson.py has no alternative text"),
        (LAST, LONG_CELL + LAST, "has 16 lines, not 15 at most"),
        ("tiles = 1472", LONG_CELL[6:], "has 17 lines, not 15 at most"),  # a solution; the check is a line, too
        ("25 minutes, 10", "26 minutes, 10", "the exercises take 10 of 26 minutes, less than 40%"),  # 0.4 x 26 = 10.4
        ('lesson.predict("tiles", ...)', "tiles", "there is no prediction"),
        ('"tiles", ...)', '"tiles", 1472)', "a prediction gives its number away: the guess is ..."),
        ('# %% tags=["prediction"]', "# %%", "code cell 2 predicts without the tag prediction"),
        ("...)\n\n# %%\n", "...)\nprint(1472)\n\n# %%\n", "code cell 2 is tagged prediction, and holds more than"),
        ("...)\n\n# %%\n", "...)\nguess.reveal(1)\n\n# %%\n", "code cell 2 is tagged prediction, and holds more than"),
        ('published="tiles"', 'published="tile"', "published='tile' is no key of published.json"),
        ('published="tiles"', 'published="1,472 tiles [1]"', "published='1,472 tiles [1]' is no key of published.json"),
        ('published="tiles"', '"1,472 tiles [1]"', "a reveal takes its published figure by key"),
        ("reveal(count_tiles()", "reveal(1472", "the source of a reveal holds the published value 1472"),
        ("lesson.check(2, ", "lesson.check(1, ", "exercise 2 does not end in lesson.check(2, ...)"),
        ("lesson.check(2, tiles)", "print(tiles)", "exercise 2 does not end in lesson.check(2, ...)"),
        ("lesson.explore()", "1", "there is no explorer: a call of lesson.explore(...)"),
    ],
)
def test_a_departure_is_found(tmp_path: Path, old: str, new: str, finding: str) -> None:
    assert finding in "\n".join(found(tmp_path, old, new))


def test_a_lesson_without_a_title_cannot_be_built(tmp_path: Path) -> None:
    """The links between lessons need it."""
    with pytest.raises(SourceError, match="begins with a title"):
        found(tmp_path, "# # A lesson", "# A lesson")


def test_folded_solutions_references_code_and_addresses_are_no_words(tmp_path: Path) -> None:
    """So many would be far too many: the lesson has about 900 words, and 1,500 are allowed."""
    many = "tile " * 700
    assert found(tmp_path / "solution", "# There are 1,472.", f"# {many}") == []
    assert found(tmp_path / "references", "# 1. Graphcore", f"# {many}\n# 1. Graphcore") == []
    assert found(tmp_path / "code", "# Counting.", f"# ```\n# {many}\n# ```") == []
    assert found(tmp_path / "text", "# Counting.", f"# {many}")[0].endswith(" words, not 800 to 1500")


def test_a_hash_in_a_code_block_is_no_heading(tmp_path: Path) -> None:
    assert found(tmp_path, "# Counting.", "# ```python\n# # a comment\n# ```") == []


def test_the_package_declares_the_lessons_own_number(tmp_path: Path) -> None:
    assert lint(written(tmp_path, GOOD, declared="02")) == ["the package does not declare one Lesson('03', ...)"]


def test_lesson_06_may_be_longer(tmp_path: Path) -> None:
    longer = GOOD.replace("# Tiles are many.", "# " + "tile " * 1200)
    assert not any("words" in finding for finding in lint(written(tmp_path, longer, "06_small_lesson")))
    assert any("words" in finding for finding in lint(written(tmp_path, longer, "07_small_lesson")))


# --- saved outputs


def picture(alternative: str, shown: str | None = None) -> NotebookNode:
    output: NotebookNode = new_output(
        "display_data",
        data={"image/png": "iVBORw0KGgo=", "text/plain": alternative if shown is None else shown},
        metadata={"image/png": {"alt": alternative}} if alternative else {},
    )
    return output


def printed(text: str) -> NotebookNode:
    output: NotebookNode = new_output("stream", name="stdout", text=text)
    return output


DESCRIPTION = "Bars of memory for two IPUs: the first one is full."
PICTURE = picture(DESCRIPTION)


@pytest.mark.parametrize(
    ("outputs", "findings"),
    [
        ([PICTURE, printed("  published: 8 s an epoch, [1]\n")], []),
        ([], ["no picture is saved"]),
        ([picture("")], ["picture 1 is described by '', not in 10 words or more"]),
        ([PICTURE, picture("A bar chart.")], ["picture 2 is described by 'A bar chart.', not in 10 words or more"]),
        (
            [picture(DESCRIPTION, "<Figure size 640x480 with 1 Axes>")],
            ["picture 1 shows another text than its description where pictures are not shown"],
        ),
        (
            [PICTURE, printed("guess\n  published: 8 s an epoch\n")],
            ["no source, such as [1], in the line 'published: 8 s an epoch'"],
        ),
    ],
)
def test_outputs_are_described_and_have_their_sources(
    tmp_path: Path, outputs: list[NotebookNode], findings: list[str]
) -> None:
    saved = assemble(write_lesson(tmp_path, "# %%\n1\n"))
    saved.cells[0].outputs = outputs
    assert output_findings(saved) == findings


def saved(folder: Path) -> LessonSource:
    """The good lesson with a notebook that nobody executed."""
    lesson = written(folder, GOOD)
    nbformat.write(assemble(lesson), lesson.notebook)
    return lesson


def test_the_lint_looks_into_the_saved_notebook(tmp_path: Path) -> None:
    assert lint(saved(tmp_path)) == ["no picture is saved"]


def test_the_check_command_lints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path)
    assert main(["check", *places(tmp_path)]) == 1
    assert "03_small_lesson: no picture is saved" in capsys.readouterr().err
