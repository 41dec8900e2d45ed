"""Does a saved notebook agree with its source, and would comparing its outputs prove anything?"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

import nbformat
from nbformat import NotebookNode

from notebook_build.assemble import assemble
from notebook_build.execute import WIDGET_VIEW
from notebook_build.lesson import IGNORED_OUTPUT, LessonSource

MOST_DIFFERENCES = 30
# What another machine or another day would print differently.
VARYING = {
    "an absolute path": re.compile(
        r"(?<![\w.+/])/(?:home|root|Users|tmp|private|var|usr|opt|mnt|work|workspace|srv)/\w|\b[A-Z]:\\\w|file://"
    ),
    "a memory address": re.compile(r"\bat 0x[0-9a-fA-F]{6,}|\b0x[0-9a-fA-F]{9,}"),
}
# "measured" is the course's word for wall-clock time: such a number belongs into a cell that is not compared.
WALL_CLOCK = re.compile(
    r"\bmeasured\b[^\n]*\d|\d ?it/s|\ds/it|Wall time|CPU times"
    r"|\b\d{1,2}:\d\d:\d\d\b|\b20\d\d-[01]\d-[0-3]\d\b",
    re.IGNORECASE,
)


def check(lesson: LessonSource) -> list[str]:
    """Return what is wrong with a lesson's notebook, one finding a line; empty if all is well."""
    if not lesson.notebook.exists():
        return [f"{lesson.notebook.name} is missing: make notebooks LESSON={lesson.name[:2]} builds it"]
    saved = nbformat.read(lesson.notebook, as_version=nbformat.NO_CONVERT)
    found = differences(assemble(lesson), saved)
    # A lesson's number is how `make` chooses it; a link to a new next lesson is one reason why a notebook differs.
    head = f"the notebook differs from its source (make notebooks LESSON={lesson.name[:2]} builds it anew):"
    return [*([head, *found] if found else []), *findings(saved)]


def differences(built: NotebookNode, saved: NotebookNode) -> list[str]:
    """Return the lines in which a notebook departs from its source: cells, ids and metadata, not outputs."""
    changed = difflib.unified_diff(
        canonical(built).splitlines(), canonical(saved).splitlines(), "source", "notebook", lineterm="", n=1
    )
    lines = list(changed)
    if len(lines) > MOST_DIFFERENCES:
        lines[MOST_DIFFERENCES:] = [f"... and {len(lines) - MOST_DIFFERENCES} more lines"]
    return lines


def canonical(notebook: NotebookNode) -> str:
    """Return all of a notebook but outputs and execution counts, as text to compare line by line."""
    head = {key: value for key, value in notebook.items() if key != "cells"}
    parts = [json.dumps(head, sort_keys=True, indent=1)]
    for cell in notebook.cells:
        metadata = json.dumps(cell.metadata, sort_keys=True)
        parts.append(f"--- {cell.cell_type} {cell.get('id')} {metadata}\n{cell.source}")
    return "\n".join(parts)


def findings(notebook: NotebookNode) -> list[str]:
    """Return the reasons why comparing this notebook's outputs would prove less than it seems to."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    found = []
    if not code:
        found.append("there is no code cell")
    if counts != list(range(1, len(code) + 1)):
        found.append(f"execution counts are {counts}, not 1 to {len(code)}: not one run from a clean kernel")
    ignored = sum(IGNORED_OUTPUT in cell.metadata.get("tags", ()) for cell in code)
    if ignored > (most := 2 + len(code) // 5):
        found.append(f"{ignored} cells ignore their output, and {most} of {len(code)} may")
    if "widgets" in notebook.metadata:
        found.append("widget state is saved")
    for number, cell in enumerate(code, start=1):
        found += [f"code cell {number}: {finding}" for finding in output_findings(cell)]
    return found


def output_findings(cell: NotebookNode) -> Iterator[str]:
    """Yield what is wrong with the outputs of one cell."""
    compared = IGNORED_OUTPUT not in cell.metadata.get("tags", ())
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"raises {output.ename}: {output.evalue}"
        if compared and output.get("name") == "stderr":
            yield "writes to stderr, where warnings come and go with versions"
        if WIDGET_VIEW in output.get("data", {}):
            yield "holds a widget view without its state"
        for text in texts(output):
            for what, pattern in VARYING.items():
                if match := pattern.search(text):
                    yield f"shows {what}: {excerpt(text, match)}"
            if compared and (match := WALL_CLOCK.search(text)):
                yield f"shows wall-clock time, but its output is compared: {excerpt(text, match)}"


def texts(output: NotebookNode) -> list[str]:
    """Return all that an output says in words, whatever its kind."""
    data = output.get("data", {})
    spoken = [value for kind, value in data.items() if kind.startswith("text/") and isinstance(value, str)]
    return [*spoken, *([output.text] if "text" in output else [])]


def excerpt(text: str, match: re.Match[str]) -> str:
    """Return the surroundings of a match, in one line."""
    return repr(text[max(0, match.start() - 20) : match.end() + 20])
