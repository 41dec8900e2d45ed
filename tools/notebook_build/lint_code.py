"""The form of a lesson's code cells: short, with a prediction, and with an explorer where a knob is the lesson."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nbformat import NotebookNode

from notebook_build.lesson import LessonSource
from notebook_build.limits import MOST_CODE_LINES, WITHOUT_EXPLORER


def code_findings(cells: list[NotebookNode], lesson: LessonSource) -> list[str]:
    """Return where the code of a built notebook departs from the form."""
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    calls = [call for source in code for call in calls_in(source)]
    return [*long_cells(code), *call_findings(calls, lesson.name[:2])]


def long_cells(code: list[str]) -> Iterator[str]:
    """Yield the code cells that do not fit a slide."""
    for number, source in enumerate(code, start=1):
        lines = sum(bool(line.strip()) for line in source.splitlines())
        if lines > MOST_CODE_LINES:
            yield f"code cell {number} has {lines} lines, not {MOST_CODE_LINES} at most"


def call_findings(calls: list[ast.Call], number: str) -> Iterator[str]:
    """Yield what a lesson does not call, or calls in another form."""
    numbers = [value(call.args[0]) for call in calls if name(call) == "Lesson" and call.args]
    if numbers != [number]:
        yield f"there is no single Lesson({number!r})"
    predictions = [call for call in calls if name(call) == "predict"]
    if not predictions:
        yield "there is no prediction: lesson.predict(quantity, ...)"
    if any(len(call.args) != 2 or value(call.args[1]) is not ... for call in predictions):
        yield "a prediction gives its number away: the guess is ..."
    if number not in WITHOUT_EXPLORER and not any(name(call).startswith("explore_") for call in calls):
        yield "there is no explorer: a call of explore_..."


def calls_in(source: str) -> list[ast.Call]:
    """Return the calls in a cell."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]


def name(call: ast.Call) -> str:
    """Return the last part of the name that is called; empty if it has none."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def value(node: ast.expr) -> object:
    """Return a literal's value, and None for anything else."""
    return node.value if isinstance(node, ast.Constant) else None
