"""One run of a lesson that tries every answer: starters, half-finished, wrong and other right ones, then solutions.

All of it happens in one kernel. The solution comes last, so it is what the lesson's later cells see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from notebook_build.assemble import assemble, exercises_of
from notebook_build.errors import SourceError
from notebook_build.execute import execute
from notebook_build.exercise import Exercise, solved
from notebook_build.lesson import EXERCISE, LessonSource
from notebook_build.wrong_answers import TriedAnswer, file_of, named, read_answers

STARTER, HALF, WRONG, RIGHT, SOLVED = "starter", "half answered", "wrong", "also right", "solved"
OPEN_NAME = re.compile(r"^\w+ = \.\.\.$")


@dataclass(frozen=True)
class Attempt:
    """One form of an exercise's cell, and the cell itself, which holds the outputs after the run."""

    exercise: int
    form: str
    cell: NotebookNode
    answer: TriedAnswer | None = None

    @property
    def name(self) -> str:
        detail = f": {self.answer.name}" if self.answer else ""
        return f"Exercise {self.exercise}, {self.form}{detail}"

    @property
    def verdict(self) -> str:
        """What the check said after "Exercise N: ", in one line; empty if it said nothing."""
        printed = "".join(output.get("text", "") for output in self.cell.outputs)
        _, found, said = printed.rpartition(f"Exercise {self.exercise}: ")
        return " ".join(said.split()) if found else ""

    @property
    def error(self) -> str:
        """The error that the cell raised, in one line; empty if none."""
        return error_of(self.cell)


@dataclass(frozen=True)
class Trial:
    """A lesson after its run: the attempts in reading order, and the whole notebook."""

    lesson: LessonSource
    notebook: NotebookNode
    attempts: tuple[Attempt, ...]

    def of(self, exercise: int, form: str) -> list[Attempt]:
        """Return the attempts of one form at one exercise."""
        return [attempt for attempt in self.attempts if (attempt.exercise, attempt.form) == (exercise, form)]


def error_of(cell: NotebookNode) -> str:
    """Return what an executed cell raised, in one line; empty if nothing."""
    errors = [output for output in cell.get("outputs", ()) if output.output_type == "error"]
    return " ".join(f"{error.ename}: {error.evalue}" for error in errors)


def assemble_trial(lesson: LessonSource) -> Trial:
    """Return the lesson's solved form with every other answer in a cell of its own before the solution's."""
    answers, exercises = read_answers(lesson), exercises_of(lesson)
    for unknown in sorted(set(answers) - {exercise.number for exercise in exercises}):
        raise SourceError(f"{named(file_of(lesson))}: the lesson has no exercise {unknown}")
    remaining = iter(exercises)
    notebook = assemble(lesson, solved)
    cells: list[NotebookNode] = []
    attempts: list[Attempt] = []
    for cell in notebook.cells:
        if EXERCISE in cell.metadata.get("tags", ()):
            exercise = next(remaining)
            others = list(other_answers(exercise, answers.get(exercise.number, [])))
            cells += [attempt.cell for attempt in others]
            attempts += [*others, Attempt(exercise.number, SOLVED, cell)]
        cells.append(cell)
    for number, cell in enumerate(cells):
        cell["id"] = f"trial-{number}"
    notebook["cells"] = cells
    return Trial(lesson, notebook, tuple(attempts))


def other_answers(exercise: Exercise, answers: list[TriedAnswer]) -> Iterator[Attempt]:
    """Yield all that a learner might run before the lesson's own answer."""
    number = exercise.number
    yield Attempt(number, STARTER, new_code_cell(exercise.before + exercise.starter + exercise.after))
    for half in half_answers(exercise):
        yield Attempt(number, HALF, new_code_cell(exercise.before + half + exercise.after))
    for each in answers:
        yield Attempt(number, WRONG if each.hint else RIGHT, new_code_cell(each.cell(exercise)), each)


def half_answers(exercise: Exercise) -> Iterator[str]:
    """Yield the solution with its last name left open, where the starter opens several names."""
    lines = exercise.starter.splitlines()
    if len(lines) > 1 and all(OPEN_NAME.match(line) for line in lines):
        yield f"{exercise.solution}\n{lines[-1]}"


def run_trial(lesson: LessonSource, environment: Mapping[str, str] | None = None) -> Trial:
    """Run all answers of a lesson; `environment` adds to the kernel's. Cells that raise do not end the run."""
    trial = assemble_trial(lesson)
    execute(trial.notebook, lesson.notebook.parent, environment, allow_errors=True)
    return trial
