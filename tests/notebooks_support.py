"""What the tests of the notebooks share: small lessons to try the build on, and the course's own lessons."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbformat import NotebookNode

from notebook_build.lesson import LessonSource, lessons

LESSONS = lessons()
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)

MODELLED_FIGURE = re.compile(r"\bmodelled\b[^\n]*\d", re.IGNORECASE)

LESSON = """\
# %% [markdown]
# # A lesson

# %%
total = 1 + 1
print(total)

# %% [markdown]
# ## Exercise

# %% tags=["exercise"]
def doubled(value):
    ### BEGIN SOLUTION
    ### STARTER: result = ...
    result = 2 * value
    ### END SOLUTION
    return result

print("not attempted yet" if doubled(2) is ... else doubled(2) == 4)

# %% [markdown] tags=["hint"]
# Multiply.

# %% [markdown] tags=["solution"]
# Twice is *two times*.

# %% tags=["nbval-ignore-output"]
print("measured: 12.5 s")
"""


def write_lesson(folder: Path, text: str = LESSON, name: str = "03_small_lesson") -> LessonSource:
    """Write the source of a lesson below `folder` and return the lesson, not built yet."""
    own = folder / "lessons" / name[3:]
    own.mkdir(parents=True, exist_ok=True)
    (own / f"{name}.py").write_text(text, encoding="utf-8")
    return lessons((name,), folder / "lessons", folder)[0]


def places(folder: Path) -> list[str]:
    """Return the options that say where the lesson of `write_lesson` is."""
    return ["--lessons", str(folder / "lessons"), "--notebooks", str(folder)]


def shown(notebook: NotebookNode) -> list[str]:
    """Return all that a notebook's cells say in words, a text for each output."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    spoken = [text for output in outputs for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
    return [*spoken, *(output.text for output in outputs if "text" in output)]


def modelled_figures(notebook: NotebookNode) -> Iterator[str]:
    """Yield the lines that give a modelled figure."""
    for text in shown(notebook):
        # References such as [1] and HTML's numbered characters are no figures; a table's row belongs together.
        plain = re.sub(r"</t[dh]>\s*<t[dh][^>]*>", " ", re.sub(r"\[\d+\]", "", html.unescape(text)))
        yield from (match[0] for match in MODELLED_FIGURE.finditer(plain))


def first_on_path(folder: Path) -> dict[str, str]:
    """Return the variables of a kernel that imports `sitecustomize` from a folder at its start."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}
