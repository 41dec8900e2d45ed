"""A learner's result for the leaderboard of a room: one small file without paths, hosts or dates."""

# Without `from __future__ import annotations`: msgspec reads the types of `LearnerResult`, on Python 3.8 too.
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Tuple

import msgspec

from ipu_course.errors import CourseError
from ipu_course.programs.report.overview import CLOSE_FACTOR
from ipu_course.progress import Progress, Score
from ipu_course.whole_files import read_whole

FORMAT = "result of the IPU course"
VERSION = 1
LARGEST_BYTES = 1_000_000
LONGEST_NAME = 40


@dataclass(frozen=True)
class LearnerResult:
    """What a learner hands in: solved exercises, best scores, and the factor by which each first guess was off."""

    name: str
    solved: int
    scores: Tuple[Score, ...]
    factors_off: Tuple[float, ...]

    def __post_init__(self) -> None:
        if self.solved < 0:
            raise ValueError(f"nobody has solved {self.solved} exercises")
        if any(factor < 1 for factor in self.factors_off):
            raise ValueError("a guess cannot be off by a factor below 1")

    @property
    def close_guesses(self) -> int:
        """How many first guesses are within a factor of 2 of their results."""
        return sum(factor <= CLOSE_FACTOR for factor in self.factors_off)


@dataclass(frozen=True)
class _Head:
    format: str = ""
    version: object = None


def result_of(progress: Progress, name: str) -> LearnerResult:
    """Return what a learner with these records hands in; ``name`` may be empty."""
    factors = (prediction.factor_off for prediction in progress.predictions)
    return LearnerResult(
        name.strip()[:LONGEST_NAME],
        sum(record.correct for record in progress.exercises),
        progress.scores,
        tuple(factor for factor in factors if factor is not None),
    )


def to_text(result: LearnerResult) -> str:
    """Return the content of a result's file."""
    return json.dumps({"format": FORMAT, "version": VERSION, **asdict(result)}, indent=1) + "\n"


def read_result(path: Path) -> LearnerResult:
    """Read a result's file. Raises ``CourseError`` with the reason for a file that is none."""
    try:
        content = read_whole(path, LARGEST_BYTES)
    except OSError as problem:
        raise CourseError(f"{path}: the file cannot be read ({problem.strerror})") from problem
    try:
        head = msgspec.json.decode(content, type=_Head)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        head = _Head()
    if head.format != FORMAT:
        raise CourseError(f"{path}: the file is not a result that 'report --export' wrote")
    if head.version != VERSION:
        raise CourseError(f"{path}: another version of the course wrote this result; export it again with this one")
    try:
        result = msgspec.json.decode(content, type=LearnerResult)
    except msgspec.MsgspecError as problem:
        raise CourseError(f"{path}: the result is damaged ({problem}); export it again") from problem
    return replace(result, name=result.name[:LONGEST_NAME])
