"""What README and agendas say about a lesson, read from its source and from the measured running times."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
PLAN = re.compile(r"Plan (\d+) minutes(?:, (\d+) of them for the exercises)?")
NOT_MEASURED = "not measured yet"


class FactsError(Exception):
    """A lesson or the measured times do not say what is needed."""


@dataclass(frozen=True)
class LessonFacts:
    """One lesson: title, planned minutes, those of them for the exercises, what the learner will do."""

    name: str
    title: str
    minutes: int
    exercise_minutes: int
    outcomes: tuple[str, ...]

    @property
    def number(self) -> str:
        return self.name[:2]


@dataclass(frozen=True)
class Measured:
    """Running times in seconds by lesson, and the machine and command they were measured with."""

    machine: str = ""
    command: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return the time of a lesson in whole seconds, or that there is none."""
        return f"{max(1.0, self.seconds[name]):.0f} s" if name in self.seconds else NOT_MEASURED


def read_lessons(folder: Path = NOTEBOOKS) -> dict[str, LessonFacts]:
    """Return the lessons that have a source, by name in reading order."""
    sources = sorted((folder / "source").glob("[0-9][0-9]_*.py"))
    return {source.stem: facts_of(source.stem, source.read_text(encoding="utf-8")) for source in sources}


def facts_of(name: str, source: str) -> LessonFacts:
    """Return what the first cell of a lesson's source says."""
    lines = first_cell(source)
    title = next((line[2:].strip() for line in lines if line.startswith("# ")), None)
    if title is None:
        raise FactsError(f"{name}: the first cell has no title")
    plan = PLAN.search(" ".join(lines))
    if plan is None:
        raise FactsError(f"{name}: the first cell does not say `Plan N minutes, M of them for the exercises`")
    minutes, exercise_minutes = int(plan[1]), int(plan[2] or 0)
    if exercise_minutes >= minutes:
        raise FactsError(f"{name}: {exercise_minutes} minutes of exercises do not fit into {minutes}")
    return LessonFacts(name, title, minutes, exercise_minutes, outcomes_in(lines))


def first_cell(source: str) -> list[str]:
    """Return the lines of the first markdown cell of a py:percent source, without the comment signs."""
    lines: list[str] = []
    inside = False
    for line in source.splitlines():
        if line.startswith("# %%"):
            if inside:
                break
            inside = "[markdown]" in line
        elif inside:
            lines.append(re.sub(r"^# ?", "", line))
    return lines


def outcomes_in(lines: list[str]) -> tuple[str, ...]:
    """Return the items of a cell's list, each on one line and without the comma or full stop at its end."""
    items: list[str] = []
    for line in lines:
        if line.startswith(("* ", "- ")):
            items.append(line[2:].strip())
        elif items and line.startswith("  ") and line.strip():
            items[-1] += f" {line.strip()}"
    return tuple(item.rstrip(".,;") for item in items)


def read_measured(file: Path = NOTEBOOKS / "measured.json") -> Measured:
    """Return the measured times; none when there is no such file."""
    if not file.exists():
        return Measured()
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        seconds = {str(name): float(value) for name, value in content["seconds"].items()}
        return Measured(str(content["machine"]), str(content["command"]), seconds)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise FactsError(f"{file.name} is not {{machine, command, seconds}}: {problem!r}") from problem
