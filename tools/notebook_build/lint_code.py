"""The form of a lesson's code cells: short, with predictions that give nothing away, checks and an explorer."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from nbformat import NotebookNode

from ipu_course.published import PublishedFigure, published_figures
from notebook_build.lesson import EXERCISE, PREDICTION, LessonSource
from notebook_build.limits import MOST_CODE_LINES


def code_findings(cells: list[NotebookNode], lesson: LessonSource) -> list[str]:
    """Return where the code of a built notebook departs from the form."""
    code = [cell for cell in cells if cell.cell_type == "code"]
    calls = [call for cell in code for call in calls_in(cell.source)]
    return [
        *long_cells([cell.source for cell in code]),
        *call_findings(calls, lesson),
        *prediction_findings(code),
        *reveal_findings(calls, published_figures(lesson.folder)),
        *check_findings(code),
    ]


def long_cells(code: list[str]) -> Iterator[str]:
    """Yield the code cells that do not fit a slide."""
    for number, source in enumerate(code, start=1):
        lines = sum(bool(line.strip()) for line in source.splitlines())
        if lines > MOST_CODE_LINES:
            yield f"code cell {number} has {lines} lines, not {MOST_CODE_LINES} at most"


def call_findings(calls: list[ast.Call], lesson: LessonSource) -> Iterator[str]:
    """Yield what a lesson does not call, or calls in another form."""
    number = lesson.name[:2]
    declared = [value(call.args[0]) for call in calls_in(lesson.front) if name(call) == "Lesson" and call.args]
    if declared != [number]:
        yield f"the package does not declare one Lesson({number!r}, ...)"
    predictions = [call for call in calls if name(call) == "predict"]
    if not predictions:
        yield "there is no prediction: lesson.predict(quantity, ...)"
    if any(len(call.args) != 2 or value(call.args[1]) is not ... for call in predictions):
        yield "a prediction gives its number away: the guess is ..."
    if not any(name(call) == "explore" for call in calls):
        yield "there is no explorer: a call of lesson.explore(...)"


def prediction_findings(code: list[NotebookNode]) -> Iterator[str]:
    """Yield the cells with a prediction that are not tagged, and the tagged ones that hold anything else."""
    for number, cell in enumerate(code, start=1):
        tagged = PREDICTION in cell.metadata.get("tags", ())
        predicts = any(name(call) == "predict" for call in calls_in(cell.source))
        if predicts and not tagged:
            yield f"code cell {number} predicts without the tag {PREDICTION}"
        if tagged and not all(is_prediction(statement) for statement in ast.parse(cell.source).body):
            yield f"code cell {number} is tagged {PREDICTION}, and holds more than NAME = lesson.predict(quantity, ...)"


def is_prediction(statement: ast.stmt) -> bool:
    """Tell whether a statement does nothing but note a guess."""
    call = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(call, ast.Call) and name(call) == "predict"


def reveal_findings(calls: list[ast.Call], figures: Mapping[str, PublishedFigure]) -> Iterator[str]:
    """Yield the reveals whose source gives a published figure away, or asks for one that there is not."""
    for call in calls:
        if name(call) != "reveal":
            continue
        keys = [str(value(keyword.value)) for keyword in call.keywords if keyword.arg == "published"]
        yield from (f"published={key!r} is no key of published.json" for key in keys if key not in figures)
        if len(call.args) > 2:
            yield "a reveal takes its published figure by key: published='...'"
        literals = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
        shown = [figures[key] for key in keys if key in figures]
        for figure in shown:
            if any(isinstance(literal, (int, float)) and literal == figure.value for literal in literals):
                yield f"the source of a reveal holds the published value {figure.value:g}"


def check_findings(code: list[NotebookNode]) -> Iterator[str]:
    """Yield the exercises that do not call their check."""
    exercises = [cell.source for cell in code if EXERCISE in cell.metadata.get("tags", ())]
    for number, source in enumerate(exercises, start=1):
        checked = [value(call.args[0]) for call in calls_in(source) if name(call) == "check" and call.args]
        if checked != [number]:
            yield f"exercise {number} does not end in lesson.check({number}, ...)"


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
