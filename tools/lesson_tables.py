"""Fill the tables of lessons in README.md and docs/workshop.md from the lessons' own sources.

README's table is written whole. An agenda of the workshop page keeps the order of its rows: a lesson's row gets the
lesson's title, minutes and seconds, and every row its time, counted from the beginning of the first session of a day.
`python tools/lesson_tables.py` does only this; `make docs` does it, too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from ipu_course.lesson_folders import LESSONS_FOLDER, LessonFolder, lesson_folders

ROOT = Path(__file__).resolve().parent.parent
README, WORKSHOP = ROOT / "README.md", ROOT / "docs" / "workshop.md"
README_HEAD = "| lesson | what you do | plan | runs in (measured) |\n|---|---|---|---|\n"
README_NOTE = re.compile(r"^\*Measured\* with .*\n", re.MULTILINE)
SHOWN_OUTCOMES = 3
# The README shows the first outcomes of a lesson: the bullets after "You will".
OUTCOMES = re.compile(r"You\s+will\s*\n#\n((?:# [*-] .*\n(?:#   ?\S.*\n)*)+)")
LINK = re.compile(r"\[(\d\d) [^\]]*\]\(\.\./notebooks/\w+\.ipynb\)(, exercises left for later)?")
SESSION = re.compile(r"(\d\d):(\d\d) to \d\d:\d\d")
SUMMARY = re.compile(r"^\d+ lessons: \d+ minutes, \d+ of them for exercises\.$")


@dataclass(frozen=True)
class Measured:
    """The seconds that each notebook took, by its name without ending: on which machine, with which command."""

    machine: str
    command: str
    seconds: dict[str, float]


def measured() -> Measured:
    """Return what `make nbval-conditions NBVAL_ARGS=--record` has written."""
    return Measured(**json.loads((ROOT / "notebooks" / "measured.json").read_text(encoding="utf-8")))


def outcomes(lesson: LessonFolder) -> list[str]:
    """Return what a learner does in a lesson, as its first cell lists it. Raises ``ValueError`` without such a list."""
    (source,) = LESSONS_FOLDER.glob(f"*/{lesson.number}_*.py")
    found = OUTCOMES.search(source.read_text(encoding="utf-8"))
    if not found:
        raise ValueError(f"{source.name}: the first cell has no list of outcomes after 'You will'")
    bullets = re.split(r"^# [*-] ", found[1], flags=re.MULTILINE)[1:]
    return [" ".join(bullet.replace("\n#", " ").split()).rstrip(",;.") for bullet in bullets]


def seconds_of(lesson: LessonFolder) -> str:
    """Return how long the notebook runs, as measured; a dash for a lesson that has not been measured yet."""
    seconds = measured().seconds.get(Path(lesson.notebook).stem)
    return "-" if seconds is None else f"{seconds:.0f} s"


def with_readme_table(readme: str) -> str:
    """Return the README with its table of lessons, and the note on what was measured, written anew.

    Raises ``ValueError`` if the README has no such note, because seconds mean nothing without their machine.
    """
    rows = [
        f"| [{each.number} {each.title}](notebooks/{each.notebook}) | {'; '.join(outcomes(each)[:SHOWN_OUTCOMES])} "
        f"| {each.minutes} min | {seconds_of(each)} |\n"
        for each in lesson_folders()
    ]
    before, after = readme.split(README_HEAD)
    rest = re.sub(r"\A(?:\|.*\n)+", "", after)
    of = measured()
    note = f"*Measured* with `{of.command}` on {of.machine}.\n"
    rest, notes = README_NOTE.subn(lambda _: note, rest)
    if not notes:
        raise ValueError("README.md needs a line that begins with '*Measured* with ' below its table of lessons")
    return before + README_HEAD + "".join(rows) + rest


def with_agendas(page: str) -> str:
    """Return the workshop page with the derived cells of its agendas written anew."""
    lessons = {each.number: each for each in lesson_folders()}
    lines: list[str] = []
    session: int | None = None  # the number of the line that holds the current session's times
    begin = now = count = minutes = exercise_minutes = 0
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        is_row = line.startswith("|") and len(cells) == 5
        if line.startswith("## "):
            count = minutes = exercise_minutes = 0
        if not is_row or cells[0] == "time":
            session, begin, now = None, 0, 0
            if SUMMARY.match(line):
                line = f"{count} lessons: {minutes} minutes, {exercise_minutes} of them for exercises."
        elif starts := SESSION.match(cells[0]):
            begin = now = now or 60 * int(starts[1]) + int(starts[2])
            session = len(lines)
        elif re.fullmatch(r"\d\d:\d\d", cells[0]):
            if found := LINK.match(cells[2]):
                lesson, later = lessons[found[1]], found[2] or ""
                planned = lesson.minutes - (lesson.exercise_minutes if later else 0)
                cells[1:] = [
                    str(planned),
                    f"[{lesson.number} {lesson.title}](../notebooks/{lesson.notebook}){later}",
                    "none" if later else str(lesson.exercise_minutes),
                    seconds_of(lesson),
                ]
                count, minutes = count + 1, minutes + planned
                exercise_minutes += 0 if later else lesson.exercise_minutes
            cells[0], now = clock(now), now + int(cells[1])
            line = "| " + " | ".join(cells) + " |"
            if cells[2] in ("Break", "Lunch"):
                session = None
            elif session is not None:
                lines[session] = SESSION.sub(f"{clock(begin)} to {clock(now)}", lines[session])
        lines.append(line)
    return "\n".join(lines) + "\n"


def clock(minutes: int) -> str:
    """Return minutes after midnight as a time of day."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def main() -> None:
    """Write both tables."""
    README.write_text(with_readme_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    WORKSHOP.write_text(with_agendas(WORKSHOP.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
