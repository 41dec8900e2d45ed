"""What the checks found, and how it is printed."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Sequence

from ipu_course import __version__
from ipu_course.course_files import is_wheel

_WHEEL = f"./ipu_course-{__version__}-py3-none-any.whl"
IN_CLONE = (
    "Run `make setup` in the course's folder, or `pip install -r requirements.txt` there in an environment of your own."
)
FROM_WHEELS = (
    "In the folder with the two wheels, run "
    f"`python -m pip install '{_WHEEL}[lab,programs]' ./ipu_model-{__version__}-py3-none-any.whl`."
)
WITH_SDK_IN_CLONE = "Run `pip install -r requirements-ipu.txt` in the course's folder, in the SDK's Python environment."
WITH_SDK_FROM_WHEEL = (
    f"In the folder with the course's wheel, run `python -m pip install 'numpy<2' '{_WHEEL}[lab]'`, in the SDK's "
    "Python environment."
)
# What installs the course's packages, without an SDK and with one.
INSTALL = FROM_WHEELS if is_wheel() else IN_CLONE
WITH_SDK = WITH_SDK_FROM_WHEEL if is_wheel() else WITH_SDK_IN_CLONE


class Severity(str, Enum):
    """How a check ended. A notice may be left as it is; a problem stops some lesson."""

    OK = "ok"
    NOTICE = "notice"
    PROBLEM = "problem"


SUMMARIES = {
    Severity.PROBLEM: "Some lessons will not run yet. The command `python -m ipu_course doctor` prints what helps.",
    Severity.NOTICE: "The lessons run here. The command `python -m ipu_course doctor` explains the notices.",
    Severity.OK: "The lessons run here.",
}


@dataclass(frozen=True)
class Finding:
    """One thing that a check found: ``what`` it is, ``why`` it matters, the ``cure`` (both empty when it is ok)."""

    verdict: Severity
    what: str
    why: str = ""
    cure: str = ""


def ok(what: str) -> Finding:
    """Report that all is well."""
    return Finding(Severity.OK, what)


def notice(what: str, why: str, cure: str) -> Finding:
    """Report that the lessons run, with a difference that the learner should know."""
    return Finding(Severity.NOTICE, what, why, cure)


def problem(what: str, why: str, cure: str) -> Finding:
    """Report that some lesson will not run."""
    return Finding(Severity.PROBLEM, what, why, cure)


@dataclass(frozen=True)
class CheckResult:
    """A check's name and what it found."""

    check: str
    finding: Finding


def exit_code(results: Sequence[CheckResult]) -> int:
    """Return 1 when there is a problem, else 0."""
    return int(any(result.finding.verdict is Severity.PROBLEM for result in results))


def full_text(results: Sequence[CheckResult]) -> str:
    """Return every finding, with why it matters and the cure where something is to be done."""
    lines = []
    for check, finding in ((result.check, result.finding) for result in results):
        lines.append(f"{finding.verdict.value:<8} {check:<24} {finding.what}")
        lines += [_indented(f"{name}: {text}") for name, text in (("why", finding.why), ("cure", finding.cure)) if text]
    counts = Counter(result.finding.verdict for result in results)
    return "\n".join([*lines, "", ", ".join(_counted(counts[verdict], verdict) for verdict in Severity)])


def brief_text(results: Sequence[CheckResult]) -> str:
    """Return one line a check, in words that are the same on every machine where the check ends the same way."""
    lines = [f"{result.finding.verdict.value:<8} {result.check}" for result in results]
    found = {result.finding.verdict for result in results} | {Severity.OK}
    return "\n".join([*lines, "", next(text for verdict, text in SUMMARIES.items() if verdict in found)])


def as_json(results: Sequence[CheckResult]) -> str:
    """Return a list of objects: check, verdict, what, why, cure."""
    return json.dumps([{"check": result.check, **asdict(result.finding)} for result in results], indent=2)


def _indented(text: str) -> str:
    # Commands are to be copied: no word is cut.
    return textwrap.fill(
        text, 110, initial_indent=" " * 9, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False
    )


def _counted(count: int, verdict: Severity) -> str:
    return f"{count} {verdict.value}{'' if verdict is Severity.OK or count == 1 else 's'}"
