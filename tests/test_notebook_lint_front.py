"""The form of a lesson whose package declares it: predictions by themselves, figures by key, checks by number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from notebooks_support import write_lesson
from test_notebook_lint import EXERCISE, GOOD

from notebook_build.assemble import assemble
from notebook_build.exercise import solved
from notebook_build.lint import lint

FRONT = 'from ipu_course.lesson import Lesson\n\nlesson = Lesson("03")\n'
FIGURES = {"tiles": {"value": 1472, "text": "1,472 tiles", "kind": "published", "source": "[1]"}}
PREDICTION = 'guess = lesson.predict("tiles", ...)\n'
CHECKED = (
    GOOD.replace('\nfrom ipu_course.lesson import Lesson\n\nlesson = Lesson("03")\n', "\n1\n")
    .replace(f"# %%\n{PREDICTION}", f'# %% tags=["prediction"]\n{PREDICTION}\n# %%\n')
    .replace('"computed", "1,472 tiles, [1]")', '"computed", published="tiles")')
    .replace("guess.reveal(1472,", "guess.reveal(count_tiles(),")
    .replace("explore_tiles()", "lesson.explore()")
    .replace(EXERCISE.format(1), EXERCISE.format(1).replace("check_tiles(", "lesson.check(1, "))
    .replace(EXERCISE.format(2), EXERCISE.format(2).replace("check_tiles(", "lesson.check(2, "))
    .replace("45 minutes, 10", "25 minutes, 10")
)  # fmt: skip


def found(folder: Path, old: str = "", new: str = "", front: str = FRONT) -> list[str]:
    """Return the findings on the good lesson with all of `old` replaced."""
    assert old in CHECKED
    lesson = write_lesson(folder, CHECKED.replace(old, new) if old else CHECKED)
    (lesson.folder / "__init__.py").write_text(front, encoding="utf-8")
    (lesson.folder / "published.json").write_text(json.dumps(FIGURES), encoding="utf-8")
    return lint(lesson)


def test_a_lesson_in_the_form_passes(tmp_path: Path) -> None:
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("25 minutes, 10", "26 minutes, 10", "the exercises take 10 of 26 minutes, less than 40%"),  # 0.4 x 26 = 10.4
        ('# %% tags=["prediction"]', "# %%", "code cell 2 predicts without the tag prediction"),
        ("...)\n\n# %%\n", "...)\nprint(1472)\n\n# %%\n", "code cell 2 is tagged prediction, and holds more than"),
        ("...)\n\n# %%\n", "...)\nguess.reveal(1)\n\n# %%\n", "code cell 2 is tagged prediction, and holds more than"),
        ('"tiles", ...)', '"tiles", 1472)', "a prediction gives its number away: the guess is ..."),
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


def test_the_package_names_the_lessons_own_number(tmp_path: Path) -> None:
    assert "there is no single Lesson('03')" in found(tmp_path, front=FRONT.replace("03", "02"))


DEFINITION = '''\
# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def accumulate(model, batches):
### STARTER:     """Add up the gradients."""
### STARTER:     ...
def accumulate(model, batches):
    for batch in batches:
        model(batch).backward()
### END SOLUTION
lesson.check(1, accumulate)

# %% [markdown] tags=["hint"]
# Loop.

# %% [markdown] tags=["solution"]
# Gradients add up.
'''


def test_the_starter_of_a_function_keeps_its_indentation(tmp_path: Path) -> None:
    lesson = write_lesson(tmp_path, DEFINITION)
    assert assemble(lesson).cells[0].source == (
        'def accumulate(model, batches):\n    """Add up the gradients."""\n    ...\nlesson.check(1, accumulate)'
    )
    assert "model(batch).backward()\nlesson.check" in assemble(lesson, solved).cells[0].source


def test_lesson_06_may_be_longer(tmp_path: Path) -> None:
    longer = GOOD.replace("# Tiles are many.", "# " + "tile " * 1200).replace('Lesson("03")', 'Lesson("06")')
    assert not any("words" in finding for finding in lint(write_lesson(tmp_path, longer, "06_small_lesson")))
    assert any("words" in finding for finding in lint(write_lesson(tmp_path, longer, "07_small_lesson")))
