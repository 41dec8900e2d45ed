"""The agendas and the table of lessons as Markdown, and their places in pages that are otherwise written by hand."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from agenda import AGENDA_FILE, Agenda, AgendaError, Item, Session, check_agenda, minutes_of_items, read_agendas
from lesson_facts import LessonFacts, Measured, read_lessons, read_measured

ROOT = Path(__file__).resolve().parents[1]
README, WORKSHOP = ROOT / "README.md", ROOT / "docs" / "workshop.md"
NO_PLAN = "no plan yet"
OUTCOMES = 3  # of a lesson, in the table of lessons
HEADINGS = "| time | minutes | what | for exercises | the notebook runs in (measured) |\n|---|---|---|---|---|"
LESSON_HEADINGS = "| lesson | what you do | plan | runs in (measured) |\n|---|---|---|---|"


def generated_pages() -> dict[Path, str]:
    """Return each page with generated parts, as it should be now."""
    written, measured = read_lessons(), read_measured()
    data = read_agendas(AGENDA_FILE.read_text(encoding="utf-8"))
    if unlisted := sorted(set(written) - set(data.lessons)):
        raise AgendaError(f"{AGENDA_FILE.name}: [lessons] lacks {', '.join(unlisted)}")
    workshop = WORKSHOP.read_text(encoding="utf-8")
    for agenda in data.agendas:
        check_agenda(agenda, data.lessons, written)
        workshop = put(workshop, agenda.name, agenda_markdown(agenda, written, measured))
    readme = put(README.read_text(encoding="utf-8"), "lessons", lessons_markdown(data.lessons, written, measured))
    return {README: readme, WORKSHOP: workshop}


def put(page: str, name: str, content: str) -> str:
    """Return the page with `content` between the two markers of that name, which must stand in it once."""
    begin, end = f"<!-- {name}: made by `make docs` -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if page.count(begin) != 1 or len(pattern.findall(page)) != 1:
        raise AgendaError(f"the page needs the markers {begin} and {end}, once each and in this order")
    return pattern.sub(lambda _: f"{begin}\n{content.strip()}\n{end}", page)


def lessons_markdown(known: dict[str, str], written: dict[str, LessonFacts], measured: Measured) -> str:
    """Return the README's table: the lessons that are written, in order."""
    rows = []
    for name, facts in written.items():
        does = known[name] or "; ".join(facts.outcomes[:OUTCOMES])
        link = f"[{facts.number} {facts.title}](notebooks/{name}.ipynb)"
        rows.append(f"| {link} | {does} | {facts.minutes} min | {measured.text(name)} |")
    return "\n".join([LESSON_HEADINGS, *rows, "", provenance(measured)])


def provenance(measured: Measured) -> str:
    """Return the line that says what the times are of."""
    plan = "*Plan* is the time that the lesson's author sets aside for reading, predicting and the exercises."
    if not measured.seconds:
        return plan
    return f"{plan}\n*Measured* with `{measured.command}` on {measured.machine}."


def agenda_markdown(agenda: Agenda, written: dict[str, LessonFacts], measured: Measured) -> str:
    """Return an agenda: a table a day, and how much of it is lessons."""
    lines: list[str] = []
    days = sorted({session.day for session in agenda.sessions})
    for day in days:
        sessions = [session for session in agenda.sessions if session.day == day]
        if len(days) > 1:
            lines += [f"**Day {day}**", ""]
        lines += [HEADINGS, *_session_rows(sessions[0], written, measured)]
        for before, after in pairwise(sessions):
            lines += [_break_row(before, after)] if after.start > before.end else []
            lines += _session_rows(after, written, measured)
        lines.append("")
    return "\n".join([*lines, _totals(agenda, written)])


def clock(minutes: int) -> str:
    """Return minutes after midnight as a time of day."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _session_rows(session: Session, written: dict[str, LessonFacts], measured: Measured) -> list[str]:
    minutes = minutes_of_items(session, written)
    rows = [f"| {clock(session.start)} to {clock(session.end)} | | **{session.title}** | | |"]
    now = session.start
    for number, item in enumerate(session.items):
        facts = written.get(item.what) if item.is_lesson else None
        time, length = ("", NO_PLAN if item.is_lesson and facts is None else "")
        if minutes is not None:
            time, length = clock(now), str(minutes[number])
            now += minutes[number]
        exercises = str(facts.exercise_minutes) if facts and item.exercises else ("none" if facts else "")
        seconds = measured.text(item.what) if item.is_lesson else ""
        rows.append(f"| {time} | {length} | {_item_text(item, facts)} | {exercises} | {seconds} |")
    return rows


def _item_text(item: Item, facts: LessonFacts | None) -> str:
    if not item.is_lesson:
        return item.what
    if facts is None:
        return f"lesson {item.what[:2]}"
    left_out = "" if item.exercises else ", exercises left for later"
    return f"[{facts.number} {facts.title}](../notebooks/{item.what}.ipynb){left_out}"


def _break_row(before: Session, after: Session) -> str:
    return f"| {clock(before.end)} | {after.start - before.end} | {before.then} | | |"


def _totals(agenda: Agenda, written: dict[str, LessonFacts]) -> str:
    names = agenda.lessons()
    missing = [name[:2] for name in names if name not in written]
    facts = [
        (written[item.what], item.exercises) for each in agenda.sessions for item in each.items if item.what in written
    ]
    exercises = sum(fact.exercise_minutes for fact, with_exercises in facts if with_exercises)
    lessons = sum(fact.minutes - (0 if with_them else fact.exercise_minutes) for fact, with_them in facts)
    unknown = f" Without a plan yet: {', '.join(missing)}." if missing else ""
    return f"{len(names)} lessons: {lessons} minutes, {exercises} of them for exercises.{unknown}"
