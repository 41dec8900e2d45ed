"""The lessons in reading order, as their folders say; nothing about them is listed anywhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ipu_course.course_files import course_folders

LESSONS_FOLDER = Path(__file__).resolve().parent / "lessons"
SOURCE_NAME = re.compile(r"(\d\d)_([a-z0-9_]+)\.py")
_TITLE = re.compile(r"^# # (.+)$", re.MULTILINE)
_EXERCISE = re.compile(r'^# %% tags=\["exercise"', re.MULTILINE)
# Line breaks of the source may fall anywhere in it.
_PLAN = re.compile(r"Plan\s(\d+)\sminutes,\s(\d+)\sof\sthem\sfor\sthe\sexercises")


@dataclass(frozen=True)
class LessonFolder:
    """One lesson: ``number`` as in ``Lesson("02")``, ``slug`` as in its file's name, title and count of exercises.

    ``minutes`` is the time that its first cell plans, ``exercise_minutes`` the part of it for the exercises; both are
    0 where it plans none.
    """

    number: str
    slug: str
    title: str
    exercises: int
    minutes: int = 0
    exercise_minutes: int = 0

    @property
    def notebook(self) -> str:
        """The notebook's file name."""
        return f"{self.number}_{self.slug}.ipynb"


@lru_cache(maxsize=None)
def lesson_folders(folder: Path = LESSONS_FOLDER) -> tuple[LessonFolder, ...]:
    """Return the lessons below ``folder``, one for each ``topic/NN_topic.py``, by number.

    Raises ``ValueError`` for a lesson without a title, and for two lessons with one number.
    """
    found = [_read(source) for source in sorted(folder.glob("*/[0-9][0-9]_*.py"), key=lambda source: source.name)]
    numbers = [lesson.number for lesson in found]
    if len(set(numbers)) < len(numbers):
        twice = sorted({number for number in numbers if numbers.count(number) > 1})
        raise ValueError(f"two lessons have the number {', '.join(twice)}")
    return tuple(found)


def lesson_folder(number: str, folder: Path = LESSONS_FOLDER) -> Path:
    """Return the folder of the lesson with a ``number`` such as "02". Raises ``ValueError`` when there is none."""
    sources = list(folder.glob(f"*/{number}_*.py"))
    if len(sources) != 1:
        raise ValueError(f"{len(sources)} lessons have the number {number!r}")
    return sources[0].parent


def _read(source: Path) -> LessonFolder:
    name = SOURCE_NAME.fullmatch(source.name)
    text = source.read_text(encoding="utf-8")
    title = _TITLE.search(text)
    if name is None or title is None:
        raise ValueError(f"{source.name}: a lesson is called NN_topic.py and begins with a title, '# # ...'")
    plan = _PLAN.search(re.sub(r"\n# ?", " ", text))
    minutes, exercise_minutes = (int(plan[1]), int(plan[2])) if plan else (0, 0)
    return LessonFolder(name[1], name[2], title[1].strip(), len(_EXERCISE.findall(text)), minutes, exercise_minutes)


def notebook_folder() -> Path | None:
    """Return the folder of the built notebooks: this package's own, else in or above the working directory.

    ``None`` where none of these has a ``notebooks/`` with lessons in it.
    """
    folders = (folder / "notebooks" for folder in course_folders())
    return next((folder for folder in folders if any(folder.glob("[0-9][0-9]_*.ipynb"))), None)
