"""Exercises: written solved in the source, built with a starter in place of the solution.

### BEGIN SOLUTION
### STARTER: replicas = ...
replicas = 4
### END SOLUTION
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from notebook_build.errors import SourceError
from notebook_build.lesson import EXERCISE, HINT, SOLUTION, Cell

REGION = re.compile(r"^[ \t]*### BEGIN SOLUTION[ \t]*\n(.*?)^[ \t]*### END SOLUTION[ \t]*$", re.S | re.M)
STARTER = re.compile(r"^([ \t]*)### STARTER: ?(.*)\n?", re.M)
LEFT_OVER = re.compile(r"### (?:BEGIN SOLUTION|END SOLUTION|STARTER)")


@dataclass(frozen=True)
class Exercise:
    """One exercise, counted from 1; `starter` or `solution` stands between `before` and `after`."""

    number: int
    before: str
    starter: str
    solution: str
    after: str


Answer = Callable[[Exercise], str]
"""Chooses what stands in an exercise cell, indented as the region is."""


def starter(exercise: Exercise) -> str:
    """Answer an exercise with its starter: what learners get."""
    return exercise.starter


def solved(exercise: Exercise) -> str:
    """Answer an exercise with its solution: what tests run."""
    return exercise.solution


def parse(cell: Cell, number: int, where: str) -> Exercise:
    """Split an exercise cell at its one solution region."""
    regions = list(REGION.finditer(cell.text))
    if len(regions) != 1:
        raise SourceError(f"{where}: an exercise has one BEGIN SOLUTION ... END SOLUTION region, not {len(regions)}")
    region = regions[0]
    starters = [indent + line for indent, line in STARTER.findall(region[1])]
    if not starters:
        raise SourceError(f"{where}: the solution region has no '### STARTER: ...' line")
    before, after = cell.text[: region.start()], cell.text[region.end() :]
    solution = STARTER.sub("", region[1]).rstrip("\n")
    if not solution.strip():
        raise SourceError(f"{where}: the solution is empty")
    if LEFT_OVER.search(before + solution + after):
        raise SourceError(f"{where}: a solution marker stands outside the region")
    return Exercise(number, before, "\n".join(starters), solution, after)


def find_exercises(cells: list[Cell], lesson: str) -> dict[int, Exercise]:
    """Return the exercises of a lesson by cell number; SourceError if one has no hint or no solution."""
    exercises: dict[int, Exercise] = {}
    expected: str | None = None
    for cell in cells:
        where = f"{lesson}: cell {cell.number}"
        role = next((tag for tag in cell.tags if tag in (EXERCISE, HINT, SOLUTION)), None)
        if role is None:
            if cell.kind == "code" and LEFT_OVER.search(cell.text):
                raise SourceError(f"{where}: a cell with a solution region needs the tag {EXERCISE}")
            if expected == SOLUTION:
                raise SourceError(f"{where}: the hint must be followed by the {SOLUTION} cell")
            continue
        if role != (expected or EXERCISE):
            raise SourceError(f"{where}: found {role}, but {expected or EXERCISE} comes next")
        if (cell.kind == "code") != (role == EXERCISE):
            right = "code" if role == EXERCISE else "markdown"
            raise SourceError(f"{where}: {role} is a tag for {right} cells")
        if role == EXERCISE:
            exercises[cell.number] = parse(cell, len(exercises) + 1, where)
        expected = {EXERCISE: HINT, HINT: SOLUTION, SOLUTION: None}[role]
    if expected is not None:
        raise SourceError(f"{lesson}: the last exercise has no {expected} cell")
    return exercises


def folded(title: str, body: str) -> str:
    """Return markdown that a reader opens with a click."""
    return f"<details>\n<summary>{title}</summary>\n\n{body.strip()}\n\n</details>"


def folded_solution(exercise: Exercise, explanation: str) -> str:
    """Return the folded block with an exercise's solution and its explanation."""
    code = textwrap.dedent(exercise.solution).strip()
    return folded("Solution", f"```python\n{code}\n```\n\n{explanation.strip()}")
