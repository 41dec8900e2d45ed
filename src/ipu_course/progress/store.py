"""The progress file: where it lies, how it is read, and how it is changed under a lock and replaced whole."""

# Without `from __future__ import annotations`: msgspec reads the types of `_Content`, on Python 3.8 too.
import json
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterator, Optional, Sequence, Tuple, Union

import msgspec
import platformdirs
from filelock import FileLock, Timeout

from ipu_course.progress.record import (
    BudgetUse,
    Entry,
    ExerciseRecord,
    PredictionRecord,
    Progress,
    QuizAnswer,
    Rung,
    Score,
)
from ipu_course.whole_files import read_whole, write_whole

VARIABLE = "IPU_COURSE_PROGRESS"
# 1 had neither scores nor answers to quizzes, 1 to 3 no budgets; 1 and 2 called `compared_with` `published`.
VERSION = 4
LOCK_SECONDS = 2.0
"""How long a note waits for other kernels: a lesson must not stand still for its records."""
POLL_SECONDS = 0.01
PRIVATE = 0o600
MOST_BYTES = 100_000_000  # A course leaves some thousand.


class DamagedFile(Exception):
    """The file is not what this course wrote."""


class NewerFile(Exception):
    """A later release of the course wrote the file."""


@dataclass(frozen=True)
class _Version:
    version: int


@dataclass(frozen=True)
class _Content:
    predictions: Tuple[PredictionRecord, ...]
    exercises: Tuple[ExerciseRecord, ...]
    rungs: Tuple[Rung, ...]
    scores: Tuple[Score, ...] = ()
    quiz_answers: Tuple[QuizAnswer, ...] = ()
    budgets: Tuple[BudgetUse, ...] = ()


def progress_file() -> Path:
    """Return the file that ``IPU_COURSE_PROGRESS`` names, else one in the user's data folder.

    A relative path is taken from the working directory. Raises ``RuntimeError`` when the user has no home folder.
    """
    chosen = os.environ.get(VARIABLE, "").strip()
    folder = Path(platformdirs.user_data_dir("ipu-course", appauthor=False))
    if not chosen and not folder.is_absolute():  # without a home folder "~" stays as it is
        raise RuntimeError("the user has no home folder")
    # A link stays a link: it is its target that gets replaced.
    return Path(os.path.realpath(Path(chosen).expanduser() if chosen else folder / "progress.json"))


def to_text(progress: Progress) -> str:
    """Return the file's content for ``progress``."""
    kept = {"version": VERSION, **asdict(progress)}
    del kept["problem"]
    return json.dumps(kept, indent=1, allow_nan=False) + "\n"


def from_text(text: Union[str, bytes]) -> Progress:
    """Return the progress in a file's content; raises ``NewerFile`` or ``DamagedFile``."""
    try:
        plain = msgspec.json.decode(text)
        version = msgspec.convert(plain, type=_Version).version
        if version > VERSION:
            raise NewerFile
        for prediction in plain["predictions"] if version < 3 else ():
            prediction["compared_with"] = prediction.pop("published", None)
        content = msgspec.convert(plain, type=_Content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, LookupError, TypeError, AttributeError) as problem:
        raise DamagedFile(str(problem)) from problem
    return Progress(
        content.predictions, content.exercises, content.rungs, content.scores, content.quiz_answers, content.budgets
    )


def load(path: Path) -> Progress:
    """Return the progress in ``path``, empty when there is no such file.

    Raises ``OSError``, ``DamagedFile`` or ``NewerFile``.
    """
    return from_text(read_whole(path, MOST_BYTES)) if _is_there(path) else Progress()


def add(path: Path, entries: Sequence[Entry], wait_seconds: float = LOCK_SECONDS) -> None:
    """Add entries to the progress in ``path``; raises ``OSError`` or ``NewerFile`` with the file left as it was.

    A damaged file is first moved aside, to ``progress.damaged-1.json`` and so on.
    """
    _is_there(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path, wait_seconds):
        try:
            known = load(path)
        except DamagedFile:
            move_aside(path, "damaged")
            known = Progress()
        changed = known.with_entries(entries)
        if changed != known:
            write_whole(path, to_text(changed), PRIVATE)


def reset(path: Path) -> Optional[Path]:
    """Move the progress file aside as a backup and return the backup's path; ``None`` when there was none."""
    if not _is_there(path):
        return None
    with locked(path):
        return move_aside(path, "backup")


@contextmanager
def locked(path: Path, wait_seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock file beside ``path``; raises ``TimeoutError`` when others hold it for ``wait_seconds``.

    The system frees the lock when its process ends, however it ends, so none is ever left behind.
    """
    lock = FileLock(str(path.with_name(f"{path.name}.lock")), timeout=wait_seconds)
    try:
        lock.acquire(poll_interval=POLL_SECONDS)
    except Timeout:
        raise
    except (NotImplementedError, OSError):
        # Some network file systems have no locks. The file is still replaced whole: at worst, of two notes made
        # at the same moment one is lost.
        pass
    try:
        yield
    finally:
        lock.release()


def move_aside(path: Path, why: str) -> Path:
    """Rename ``path`` to the first free ``NAME.WHY-NUMBER.SUFFIX`` beside it; the caller holds the lock."""
    target = free_name(path, why)
    os.replace(path, target)
    return target


def free_name(path: Path, why: str) -> Path:
    """Return the first ``NAME.WHY-NUMBER.SUFFIX`` beside ``path`` that nothing has."""
    number = 1
    while os.path.lexists(target := path.with_name(f"{path.stem}.{why}-{number}{path.suffix}")):
        number += 1
    return target


def _is_there(path: Path) -> bool:
    # Whoever sends the record to /dev/null wants none, and would lose more than a file were it replaced.
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file")
    return path.exists()
