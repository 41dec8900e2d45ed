"""The progress file's format: JSON with a version, checked field by field when it is read."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from ipu_course.progress.record import ExerciseRecord, Prediction, Progress, QuizAnswer, Rung, Score

VERSION = 2  # 1 had neither scores nor answers to quizzes


class DamagedFile(Exception):
    """The file is not what this course wrote."""


class NewerFile(Exception):
    """A later release of the course wrote the file."""


def to_text(progress: Progress) -> str:
    """The file's content for ``progress``."""
    kept = asdict(progress)
    del kept["problem"]
    return json.dumps({"version": VERSION, **kept}, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def from_text(text: str) -> Progress:
    """The progress in a file's content; raises ``NewerFile`` or ``DamagedFile``."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DamagedFile(str(problem)) from problem
    if not isinstance(content, dict) or not _is_count(content.get("version")):
        raise DamagedFile("no version")
    if content["version"] > VERSION:
        raise NewerFile(f"version {content['version']}")
    try:
        return Progress(
            predictions=tuple(_prediction(entry) for entry in content["predictions"]),
            exercises=tuple(_exercise(entry) for entry in content["exercises"]),
            rungs=tuple(_rung(entry) for entry in content["rungs"]),
            scores=tuple(_score(entry) for entry in content.get("scores", ())),
            quiz_answers=tuple(_quiz_answer(entry) for entry in content.get("quiz_answers", ())),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise DamagedFile(repr(problem)) from problem


def _prediction(entry: dict[str, Any]) -> Prediction:
    return Prediction(
        lesson=_text(entry["lesson"]),
        quantity=_text(entry["quantity"]),
        guess=_number(entry["guess"]),
        result=_number(entry["result"]),
        source=_text(entry["source"]),
        published=None if entry["published"] is None else _text(entry["published"]),
        later_guesses=tuple(_number(guess) for guess in entry["later_guesses"]),
    )


def _exercise(entry: dict[str, Any]) -> ExerciseRecord:
    attempts, solved_at = entry["attempts"], entry["solved_at"]
    if not _is_count(attempts) or not (solved_at is None or (_is_count(solved_at) and solved_at <= attempts)):
        raise ValueError("attempts")
    return ExerciseRecord(_text(entry["lesson"]), _text(entry["exercise"]), attempts, solved_at)


def _rung(entry: dict[str, Any]) -> Rung:
    modelled, published = entry["modelled_epoch_seconds"], entry["published_epoch_seconds"]
    return Rung(
        lesson=_text(entry["lesson"]),
        step=_text(entry["step"]),
        modelled_epoch_seconds=None if modelled is None else _number(modelled),
        published_epoch_seconds=None if published is None else _number(published),
    )


def _score(entry: dict[str, Any]) -> Score:
    if entry["better"] not in ("lower", "higher"):
        raise ValueError("better")
    words = (_text(entry["lesson"]), _text(entry["exercise"]))
    return Score(*words, _number(entry["value"]), _text(entry["unit"]), entry["better"])


def _quiz_answer(entry: dict[str, Any]) -> QuizAnswer:
    return QuizAnswer(*(_text(entry[name]) for name in ("quiz", "question", "before", "after")))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
