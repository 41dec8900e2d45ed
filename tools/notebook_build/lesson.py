"""Where lessons live, and how a lesson's source becomes cells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jupytext

from ipu_course.lesson_folders import LESSONS_FOLDER, SOURCE_NAME
from notebook_build.errors import SourceError

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
EXERCISE, HINT, SOLUTION, PREDICTION = "exercise", "hint", "solution", "prediction"
IGNORED_OUTPUT = "nbval-ignore-output"
# What jupytext notes about blank lines and markers in the source; it means nothing in the notebook.
BLANK_LINES = ("lines_to_next_cell", "lines_to_end_of_cell_marker", "cell_marker")
TAGS = frozenset({EXERCISE, HINT, SOLUTION, PREDICTION, IGNORED_OUTPUT})


@dataclass(frozen=True)
class Cell:
    """One cell of a source: `kind` is "code" or "markdown", `number` counts from 1 in reading order."""

    number: int
    kind: str
    text: str
    tags: tuple[str, ...]


@dataclass(frozen=True)
class LessonSource:
    """One lesson: its source file and the notebook that is built from it.

    `draft` is a text to be tried in place of what the file says.
    """

    source: Path
    notebook: Path
    draft: str | None = None

    @property
    def name(self) -> str:
        return self.source.stem

    @property
    def folder(self) -> Path:
        """The folder with all that belongs to the lesson."""
        return self.source.parent

    @property
    def front(self) -> str:
        """The text of the lesson's `__init__.py`, empty if there is none."""
        file = self.folder / "__init__.py"
        return file.read_text(encoding="utf-8") if file.exists() else ""


def lessons(
    wanted: tuple[str, ...] = (), folder: Path = LESSONS_FOLDER, notebooks: Path = NOTEBOOKS
) -> list[LessonSource]:
    """Return the lessons below `folder` in reading order; `wanted` names the starts of those to keep.

    A lesson is `folder/topic/NN_topic.py`; its notebook is built in `notebooks`.
    """
    sources = sorted(folder.glob("*/[0-9][0-9]*.py"), key=lambda source: source.name)
    for source in sources:
        if not SOURCE_NAME.fullmatch(source.name):
            raise SourceError(f"{source.name}: a lesson is called NN_topic.py, in lower case")
    unknown = [start for start in wanted if not any(source.stem.startswith(start) for source in sources)]
    if unknown:
        raise SourceError(f"no lesson starts with {' or '.join(unknown)} in {folder}")
    chosen = [source for source in sources if not wanted or source.stem.startswith(wanted)]
    return [LessonSource(source, notebooks / f"{source.stem}.ipynb") for source in chosen]


def read_cells(lesson: LessonSource) -> list[Cell]:
    """Return the cells of a lesson's source, exercises solved; SourceError on unlisted tags or metadata."""
    text = lesson.source.read_text(encoding="utf-8") if lesson.draft is None else lesson.draft
    parsed = jupytext.reads(text, fmt="py:percent")
    cells = []
    for number, raw in enumerate(parsed.cells, start=1):
        where = f"{lesson.name}: cell {number}"
        metadata = {key: value for key, value in raw.metadata.items() if key not in BLANK_LINES}
        tags = tuple(metadata.pop("tags", ()))
        if raw.cell_type not in ("code", "markdown"):
            raise SourceError(f"{where}: {raw.cell_type} cells are not used, only code and markdown")
        if metadata:
            raise SourceError(f"{where}: only tags are allowed beside %%, not {', '.join(sorted(metadata))}")
        if unlisted := set(tags) - TAGS:
            listed = ", ".join(sorted(TAGS))
            raise SourceError(f"{where}: tag {', '.join(sorted(unlisted))} is not one of {listed}")
        cells.append(Cell(number, raw.cell_type, raw.source, tags))
    return cells
