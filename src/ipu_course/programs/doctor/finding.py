"""What a check of the doctor found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    """How a check ended. A notice may be left as it is; a problem stops some lesson."""

    OK = "ok"
    NOTICE = "notice"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that a check found: ``what`` it is, ``why`` it matters, the ``cure`` (both empty when it is ok)."""

    verdict: Verdict
    what: str
    why: str = ""
    cure: str = ""


def ok(what: str) -> Finding:
    """All is well."""
    return Finding(Verdict.OK, what)


def notice(what: str, why: str, cure: str) -> Finding:
    """The lessons run, with a difference that the learner should know."""
    return Finding(Verdict.NOTICE, what, why, cure)


def problem(what: str, why: str, cure: str) -> Finding:
    """Some lesson will not run."""
    return Finding(Verdict.PROBLEM, what, why, cure)
