"""From a lesson's cells to a notebook without outputs."""

from __future__ import annotations

import hashlib
from collections import Counter

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from notebook_build.exercise import Answer, Exercise, find_exercises, folded, folded_solution, starter
from notebook_build.lesson import HINT, SOLUTION, Cell, LessonSource, read_cells
from notebook_build.links import linked

# No Python version in here: the same notebook must come out on every machine.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}


def exercises_of(lesson: LessonSource) -> list[Exercise]:
    """Return a lesson's exercises in reading order."""
    return list(find_exercises(read_cells(lesson), lesson.name).values())


def assemble(lesson: LessonSource, answer: Answer = starter) -> NotebookNode:
    """Return the notebook of a lesson without outputs, its exercises answered by `answer`."""
    cells = read_cells(lesson)
    exercises = find_exercises(cells, lesson.name)
    seen: Counter[tuple[str, str]] = Counter()
    built, latest = [], None
    for cell in cells:
        seen[cell.kind, cell.text] += 1
        exercise = exercises.get(cell.number)
        latest = exercise or latest
        text = cell_text(cell, exercise, latest, answer)
        node = new_cell(cell, linked(text, lesson) if cell.kind == "markdown" else text)
        node["id"] = cell_id(lesson, cell, seen[cell.kind, cell.text])
        built.append(node)
    notebook: NotebookNode = new_notebook(cells=built, metadata=NotebookNode(METADATA), nbformat_minor=5)
    return notebook


def cell_text(cell: Cell, exercise: Exercise | None, latest: Exercise | None, answer: Answer) -> str:
    """Return what a cell of the notebook holds; `latest` is the exercise that a solution explains."""
    if exercise is not None:
        return exercise.before + answer(exercise) + exercise.after
    if HINT in cell.tags:
        return folded("Hint", cell.text)
    if SOLUTION in cell.tags and latest is not None:
        return folded_solution(latest, cell.text)
    return cell.text


def new_cell(cell: Cell, text: str) -> NotebookNode:
    """Return a notebook cell with the tags of a source's cell."""
    node: NotebookNode = new_code_cell(text) if cell.kind == "code" else new_markdown_cell(text)
    if cell.tags:
        node.metadata["tags"] = list(cell.tags)
    return node


def cell_id(lesson: LessonSource, cell: Cell, occurrence: int) -> str:
    """Return an id that stays when cells are put in or taken out elsewhere."""
    digest = hashlib.sha256(f"{cell.kind}\n{cell.text}\n{occurrence}".encode()).hexdigest()
    return f"{lesson.name.replace('_', '-')[:50]}-{digest[:8]}"
