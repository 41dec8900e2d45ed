"""Takes the edits of a notebook back into the lesson's source, or refuses and changes nothing.

The build's cell ids say which cell of the source a cell of the notebook is. What comes out is built again in memory
and must give the edited notebook, cell by cell, before anything is written.
"""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ipu_course.programs.lab.copies import LINKED_FOLDER, MADE_FROM, START_TAG, digest
from notebook_build.assemble import assemble
from notebook_build.errors import SourceError
from notebook_build.exercise import REGION, Exercise, find_exercises
from notebook_build.lesson import EXERCISE, HINT, SOLUTION, Cell, LessonSource, read_cells
from notebook_build.links import unlinked

FOLDED = re.compile(r"<details>\n<summary>(Hint|Solution)</summary>\n\n(.*)\n\n</details>", re.S)
FOLDED_CODE = re.compile(r"```python\n(.*?)\n```\n\n(.*)", re.S)
CELL_START = re.compile(r"^# %%", re.M)


@dataclass(frozen=True)
class Edited:
    """A cell of the edited notebook; `place` is that of its cell in the source, or None for a new one."""

    number: int
    kind: str
    text: str
    tags: tuple[str, ...]
    place: int | None


@dataclass(frozen=True)
class Base:
    """The source as it is: its cells, the notebook's cells that the build makes of them, and its exercises."""

    lesson: LessonSource
    cells: list[Cell]
    built: list[NotebookNode]
    exercises: dict[int, Exercise]

    def is_unchanged(self, cell: Edited) -> bool:
        """Tell whether a cell of the notebook is what the build made of the source."""
        return cell.place is not None and content(self.built[cell.place]) == (cell.kind, cell.text, cell.tags)


def pull(lesson: LessonSource, notebook: Path, delete: bool = False) -> str:
    """Take the edits of `notebook` into the lesson's source, and say in one line what changed.

    Raises SourceError, with nothing changed, where an edit cannot be taken back, and where cells are missing from the
    notebook unless `delete` allows to take them out of the source.
    """
    cells = read_cells(lesson)
    by_number = find_exercises(cells, lesson.name)
    exercises = {place: by_number[cell.number] for place, cell in enumerate(cells) if cell.number in by_number}
    base = Base(lesson, cells, list(assemble(lesson).cells), exercises)
    edited = edited_cells(notebook, base)
    missing = sorted(set(range(len(cells))) - {cell.place for cell in edited})
    if missing and not delete:
        listed = "".join(f"\n  {first_line(cells[place])}" for place in missing)
        raise SourceError(
            f"{lesson.name}: these cells of the source are not in {notebook.name}:{listed}\nIf you have deleted them, "
            "say --delete; if they are newer than the notebook, take them into it first"
        )
    text = new_source(base, edited)
    require_same_notebook(replace(lesson, draft=text), edited, notebook)
    if [cell.place for cell in edited] == list(range(len(cells))) and all(map(base.is_unchanged, edited)):
        return "nothing to take back: the notebook is what the source says"
    temporary = lesson.source.with_name(f".{lesson.source.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, lesson.source)
    return summary(base, edited, len(missing))


def edited_cells(path: Path, base: Base) -> list[Edited]:
    """Return the cells of the edited notebook with their places in the source; empty ones are left out."""
    notebook = read_notebook(path)
    origin = notebook.metadata.get(MADE_FROM)
    if origin is not None and origin.get("made_from") != digest({"cells": base.built}):
        raise SourceError(
            f"{path.name}: it is the copy of another version of {base.lesson.name}; take its edits into that version "
            "and merge the two with git"
        )
    own_id = re.compile(re.escape(base.lesson.name.replace("_", "-")[:50]) + r"-[0-9a-f]{8}")
    places = {cell["id"]: place for place, cell in enumerate(base.built)}
    kept = [
        (number, cell, content(cell))
        for number, cell in enumerate(notebook.cells, start=1)
        if START_TAG not in cell.metadata.get("tags", ()) and cell.source.strip()
    ]
    free = [place for place, cell in enumerate(base.built) if cell["id"] not in {cell.get("id") for _, cell, _ in kept}]
    found = []
    for number, cell, (kind, text, tags) in kept:
        place = places.pop(cell.get("id", ""), None)
        if place is None:  # an editor may give a cell that was cut and pasted a new id
            place = next((each for each in free if content(base.built[each]) == (kind, text, tags)), None)
            free = [each for each in free if each != place]
        if place is None and own_id.fullmatch(cell.get("id", "")):
            raise SourceError(
                f"{path.name}: cell {number} was built from another version of the source; merge the two with git"
            )
        found.append(Edited(number, kind, text, tags, place))
    return found


def read_notebook(path: Path) -> NotebookNode:
    """Read the edited notebook. Raises SourceError for a file that is none."""
    try:
        notebook: NotebookNode = nbformat.read(path, as_version=4)
        return notebook
    except (OSError, ValueError, nbformat.reader.NotJSONError, nbformat.ValidationError) as problem:
        raise SourceError(f"{path} cannot be read as a notebook: {problem}") from problem


def content(cell: NotebookNode) -> tuple[str, str, tuple[str, ...]]:
    """Return kind, text and tags of a notebook's cell, as in the notebook that the build writes."""
    text = cell.source.strip("\n")
    if cell.cell_type == "markdown":
        text = text.replace(f"]({LINKED_FOLDER}/", "](../")
    return cell.cell_type, text, tuple(cell.metadata.get("tags", ()))


def new_source(base: Base, edited: list[Edited]) -> str:
    """Return the source of the edited notebook; what has not changed keeps its lines."""
    source = base.lesson.source.read_text(encoding="utf-8")
    starts = [found.start() for found in CELL_START.finditer(source)]
    old_blocks = [source[start:end] for start, end in zip(starts, [*starts[1:], None])]
    codes = solution_codes(base, edited)
    blocks = []
    for cell in edited:
        if cell.place is not None and base.is_unchanged(cell) and cell.place not in codes:
            old = old_blocks[cell.place]
            blocks.append(old.rstrip("\n") + "\n" * max(2, len(old) - len(old.rstrip("\n"))))
        else:
            blocks.append(block(cell, source_text(base, cell, codes)) + "\n")
    return source[: starts[0]] + "".join(blocks).rstrip("\n") + "\n"


def solution_codes(base: Base, edited: list[Edited]) -> dict[int, str]:
    """Return the code of each solution that was edited in its folded cell, by the place of its exercise."""
    codes, latest = {}, None
    for cell in edited:
        if EXERCISE in cell.tags:
            latest = cell.place
        elif SOLUTION in cell.tags and latest in base.exercises and not base.is_unchanged(cell):
            code, _ = unfolded_solution(cell, base.lesson)
            if code != textwrap.dedent(base.exercises[latest].solution).strip():
                codes[latest] = code
    return codes


def source_text(base: Base, cell: Edited, codes: dict[int, str]) -> str:
    """Return what stands in the source for a cell. Raises SourceError where that cannot be said."""
    where = f"{base.lesson.name}: cell {cell.number} of the notebook"
    if EXERCISE in cell.tags:
        if cell.place not in base.exercises:
            raise SourceError(f"{where} is a new exercise; write it into the source, where its solution stands")
        return exercise_text(base, cell.place, cell.text, codes, where)
    if HINT in cell.tags:
        return unlinked(unfolded(cell, "Hint", base.lesson), base.lesson)
    if SOLUTION in cell.tags:
        return unlinked(unfolded_solution(cell, base.lesson)[1], base.lesson)
    return unlinked(cell.text, base.lesson) if cell.kind == "markdown" else cell.text


def exercise_text(base: Base, place: int, text: str, codes: dict[int, str], where: str) -> str:
    """Return an exercise's cell of the source: the edited text with the solution's region in place of the starter."""
    exercise = base.exercises[place]
    starters = list(re.finditer(rf"^{re.escape(exercise.starter)}$", text, re.M))
    if len(starters) != 1:
        raise SourceError(
            f"{where}: exercise {exercise.number} has another starter than the source, so the place of its solution "
            f"is not known; put these lines back, or edit the source:\n{exercise.starter}"
        )
    found = REGION.search(base.cells[place].text)
    assert found is not None  # the source was read, and each exercise has its region
    region = found[0]
    if place in codes:
        head, tail = region[: region.index(exercise.solution)], region[region.index(exercise.solution) :]
        indent = region[: len(region) - len(region.lstrip())]
        region = head + textwrap.indent(codes[place], indent) + tail[len(exercise.solution) :]
    return text[: starters[0].start()] + region + text[starters[0].end() :]


def unfolded(cell: Edited, title: str, lesson: LessonSource) -> str:
    """Return what a folded cell holds."""
    fold = FOLDED.fullmatch(cell.text)
    if fold is None or fold[1] != title:
        raise SourceError(
            f"{lesson.name}: cell {cell.number} of the notebook is tagged {title.lower()} and is no longer folded as "
            f"the build writes it: <details>, <summary>{title}</summary>, ..., </details>"
        )
    return fold[2]


def unfolded_solution(cell: Edited, lesson: LessonSource) -> tuple[str, str]:
    """Return the code and the explanation of a folded solution."""
    found = FOLDED_CODE.fullmatch(unfolded(cell, "Solution", lesson))
    if found is None:
        raise SourceError(
            f"{lesson.name}: cell {cell.number} of the notebook is a solution and no longer begins with its code"
        )
    return found[1], found[2]


def block(cell: Edited, text: str) -> str:
    """Return a cell as jupytext's py:percent has it."""
    tags = f" tags=[{', '.join(f'{chr(34)}{tag}{chr(34)}' for tag in cell.tags)}]" if cell.tags else ""
    if cell.kind == "code":
        return f"# %%{tags}\n{text}\n"
    lines = "\n".join(f"# {line}" if line else "#" for line in text.split("\n"))
    return f"# %% [markdown]{tags}\n{lines}\n"


def require_same_notebook(drafted: LessonSource, edited: list[Edited], path: Path) -> None:
    """Raise SourceError unless the build makes the edited notebook of the new source."""
    built = [content(cell) for cell in assemble(drafted).cells]
    for cell, again in zip(edited, [*built, None]):
        if (cell.kind, cell.text, cell.tags) != again:
            raise SourceError(
                f"{path.name}: cell {cell.number} would come out of the build differently; lessons have text cells and "
                "plain Python without commands of the notebook and without lines that begin with '# %%'"
            )
    if len(built) != len(edited):
        raise SourceError(f"{path.name}: its cells would come out of the build differently")


def summary(base: Base, edited: list[Edited], deleted: int) -> str:
    """Say how many cells changed, and how."""
    places = [cell.place for cell in edited if cell.place is not None]
    counts = {
        "edited": sum(cell.place is not None and not base.is_unchanged(cell) for cell in edited),
        "added": len(edited) - len(places),
        "deleted": deleted,
    }
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join([*parts, *(["order changed"] if places != sorted(places) else [])])


def first_line(cell: Cell) -> str:
    """Return the number and the first line of a cell of the source."""
    return f"cell {cell.number}: {next(iter(cell.text.splitlines()), '')}"
