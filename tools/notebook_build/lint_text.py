"""The form of a lesson's text: headings, plan, exercises, length, references and links."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nbformat import NotebookNode

from notebook_build.lesson import EXERCISE, SOLUTION, LessonSource
from notebook_build.limits import (
    EXERCISES,
    LAST_SECTIONS,
    LEAST_EXERCISE_SHARE,
    LONGER,
    WORDS,
)

HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.M)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.S | re.M)
PLAN = re.compile(r"Plan (\d+) minutes, (\d+) of them for the exercises")
TASK = re.compile(r"\*\*Exercise (\d+)\*\* \((\d+) min\)")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(\s*([^)\s]+)[^)]*\)")
CITATION = re.compile(r"\[(\d+)\](?!\()")
WORD = re.compile(r"\w[\w'’.,-]*")


def text_findings(cells: list[NotebookNode], lesson: LessonSource) -> list[str]:
    """Return where the text of a built notebook departs from the form."""
    texts = [CODE.sub(" ", cell.source) for cell in cells if cell.cell_type == "markdown"]
    return [
        *heading_findings(texts),
        *plan_findings(texts),
        *exercise_findings(cells),
        *LONGER.get(lesson.name[:2], WORDS).complaint(words(cells), "words"),
        *citation_findings(texts),
        *link_findings(texts, lesson),
    ]


def heading_findings(texts: list[str]) -> Iterator[str]:
    """Yield what is wrong with the headings: one H1, first of all, no level left out, the last ones as agreed."""
    headings = [(len(marks), title) for text in texts for marks, title in HEADING.findall(text)]
    levels = [level for level, _ in headings]
    if levels.count(1) != 1 or levels[0] != 1:
        yield f"{levels.count(1)} headings of level 1, and there is one: the first"
    for above, (level, title) in zip(levels, headings[1:], strict=False):
        if level > above + 1:
            yield f"heading {title!r} goes down from level {above} to {level}"
    sections = [title for level, title in headings if level == 2]
    if tuple(sections[-len(LAST_SECTIONS) :]) != LAST_SECTIONS:
        yield f"the last sections are not {', '.join(LAST_SECTIONS)}"
    if not texts or "**Next:**" not in texts[-1]:
        yield "the last cell has no **Next:**"


def plan_findings(texts: list[str]) -> Iterator[str]:
    """Yield what is wrong with the minutes that a lesson announces."""
    plan = PLAN.search(texts[0]) if texts else None
    if plan is None:
        yield "the first cell has no 'Plan N minutes, M of them for the exercises'"
        return
    minutes = sum(int(minutes) for text in texts for _, minutes in TASK.findall(text))
    if int(plan[2]) != minutes:
        yield f"the plan has {plan[2]} minutes for the exercises, and theirs add up to {minutes}"
    if int(plan[1]) <= minutes:
        yield f"a plan of {plan[1]} minutes leaves nothing beside the exercises' {minutes}"
    if minutes < LEAST_EXERCISE_SHARE * int(plan[1]):
        yield f"the exercises take {minutes} of {plan[1]} minutes, less than {LEAST_EXERCISE_SHARE:.0%}"


def exercise_findings(cells: list[NotebookNode]) -> Iterator[str]:
    """Yield what is wrong with the number of exercises, and with the texts before them."""
    places = [index for index, cell in enumerate(cells) if has_tag(cell, EXERCISE)]
    yield from EXERCISES.complaint(len(places), "exercises")
    for number, place in enumerate(places, start=1):
        tasks = TASK.findall(cells[place - 1].source) if place else []
        if [int(task) for task, _ in tasks] != [number]:
            yield f"the cell before exercise {number} has no '**Exercise {number}** (K min)'"


def words(cells: list[NotebookNode]) -> int:
    """Return how many words a learner is to read: no code, addresses, folded solutions or references."""
    count = 0
    for cell in cells:
        if cell.cell_type == "markdown" and not has_tag(cell, SOLUTION):
            text = CODE.sub(" ", cell.source).partition("## References")[0]
            count += len(WORD.findall(re.sub(r"</?\w+>", " ", LINK.sub(r" \2 ", text))))
    return count


def citation_findings(texts: list[str]) -> Iterator[str]:
    """Yield each [n] that the list of references does not have."""
    body, _, references = "\n".join(texts).partition("## References")
    listed = set(re.findall(r"^(\d+)\. ", references, re.M))
    for number in sorted(set(CITATION.findall(body)) - listed, key=int):
        yield f"the text cites [{number}], which is not in the references"


def link_findings(texts: list[str], lesson: LessonSource) -> Iterator[str]:
    """Yield links to files that do not exist, and pictures without alternative text."""
    for picture, title, target in LINK.findall("\n".join(texts)):
        if picture and not title.strip():
            yield f"the picture {target} has no alternative text"
        local = target.partition("#")[0]
        if local and "://" not in local and not (lesson.notebook.parent / local).exists():
            yield f"links to {local}, which does not exist"


def has_tag(cell: NotebookNode, tag: str) -> bool:
    """Tell whether a cell carries a tag."""
    return tag in cell.metadata.get("tags", ())
