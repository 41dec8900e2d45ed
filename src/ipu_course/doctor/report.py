"""How the doctor's results are shown: in full, in one line a check, or as JSON."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from typing import Sequence

from ipu_course.doctor.examination import Result
from ipu_course.doctor.finding import Verdict

WIDTH = 110
NAME_WIDTH = 24
SUMMARIES = {
    Verdict.PROBLEM: "Some lessons will not run yet. The command `python -m ipu_course doctor` tells the cures.",
    Verdict.NOTICE: "The lessons run here. The command `python -m ipu_course doctor` explains the notices.",
    Verdict.OK: "The lessons run here.",
}


def full_text(results: Sequence[Result]) -> str:
    """Every finding, with why it matters and the cure where something is to be done."""
    lines = [line for result in results for line in _lines(result)]
    counts = Counter(result.finding.verdict for result in results)
    summary = ", ".join(f"{counts[verdict]} {_plural(verdict, counts[verdict])}" for verdict in Verdict)
    return "\n".join([*lines, "", summary])


def brief_text(results: Sequence[Result]) -> str:
    """One line a check, in words that are the same on every machine where the check ends the same way."""
    lines = [f"{result.finding.verdict.value:<8} {result.check}" for result in results]
    found = {result.finding.verdict for result in results}
    worst = next(verdict for verdict in SUMMARIES if verdict in found or verdict is Verdict.OK)
    return "\n".join([*lines, "", SUMMARIES[worst]])


def as_json(results: Sequence[Result]) -> str:
    """A list of objects: check, verdict, what, why, cure."""
    entries = [
        {
            "check": result.check,
            "verdict": result.finding.verdict.value,
            "what": result.finding.what,
            "why": result.finding.why,
            "cure": result.finding.cure,
        }
        for result in results
    ]
    return json.dumps(entries, indent=2)


def _lines(result: Result) -> list[str]:
    finding = result.finding
    lines = [f"{finding.verdict.value:<8} {result.check:<{NAME_WIDTH}} {finding.what}"]
    for name, text in (("why", finding.why), ("cure", finding.cure)):
        if text:
            # Commands are to be copied: no word is cut.
            lines += textwrap.wrap(
                f"{name}: {text}",
                WIDTH,
                initial_indent=" " * 9,
                subsequent_indent=" " * 11,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines


def _plural(verdict: Verdict, count: int) -> str:
    if verdict is Verdict.OK or count == 1:
        return verdict.value
    return f"{verdict.value}s"
