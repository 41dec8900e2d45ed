"""A learner's result for the leaderboard of a room: one small file without paths, hosts or dates."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ipu_course.errors import CourseError
from ipu_course.programs.report.overview import CLOSE_FACTOR
from ipu_course.progress import Progress, Score

FORMAT = "result of the IPU course"
VERSION = 1
LARGEST_BYTES = 1_000_000
LONGEST_NAME = 40


@dataclass(frozen=True)
class Result:
    """What a learner hands in: solved exercises, best scores, and the factor by which each first guess was off."""

    name: str
    solved: int
    scores: tuple[Score, ...]
    factors_off: tuple[float, ...]

    @property
    def close_guesses(self) -> int:
        """How many first guesses are within a factor of 2 of their results."""
        return sum(factor <= CLOSE_FACTOR for factor in self.factors_off)


def result_of(progress: Progress, name: str) -> Result:
    """Return what a learner with these records hands in; ``name`` may be empty."""
    factors = (prediction.factor_off for prediction in progress.predictions)
    return Result(
        name.strip()[:LONGEST_NAME],
        sum(record.correct for record in progress.exercises),
        progress.scores,
        tuple(factor for factor in factors if factor is not None),
    )


def to_text(result: Result) -> str:
    """Return the content of a result's file."""
    return json.dumps({"format": FORMAT, "version": VERSION, **asdict(result)}, indent=1) + "\n"


def read_result(path: Path) -> Result:
    """Read a result's file. Raises ``CourseError`` with the reason for a file that is none."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise CourseError(f"{path}: the file is too large for a result of this course")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise CourseError(f"{path}: the file cannot be read ({problem.strerror})") from problem
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CourseError(f"{path}: the file is not a result that 'report --export' wrote")
    if content.get("version") != VERSION:
        raise CourseError(f"{path}: another version of the course wrote this result; export it again with this one")
    try:
        return _result(content)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as problem:
        raise CourseError(f"{path}: the result is damaged ({problem}); export it again") from problem


def _result(content: dict[str, Any]) -> Result:
    name, solved = content["name"], content["solved"]
    if not isinstance(name, str) or not isinstance(solved, int) or isinstance(solved, bool) or solved < 0:
        raise ValueError("its name or its count of exercises")
    factors = tuple(_number(factor) for factor in content["factors_off"])
    if any(factor < 1 for factor in factors):
        raise ValueError("a guess cannot be off by a factor below 1")
    return Result(name[:LONGEST_NAME], solved, tuple(map(_score, content["scores"])), factors)


def _score(entry: dict[str, Any]) -> Score:
    words = [entry[key] for key in ("lesson", "exercise", "unit", "better")]
    if not all(isinstance(each, str) for each in words) or entry["better"] not in ("lower", "higher"):
        raise ValueError("a score")
    return Score(entry["lesson"], entry["exercise"], _number(entry["value"]), entry["unit"], entry["better"])


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)
