"""All checks in their order, and their results as text or JSON. No check can end the examination or hold it up."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import Callable, Sequence

from ipu_course.programs.doctor.finding import Finding, Verdict, problem
from ipu_course.programs.doctor.jupyter_checks import check_kernel, check_lab
from ipu_course.programs.doctor.machine_checks import check_memory, check_threads
from ipu_course.programs.doctor.packages_check import check_packages, check_python, check_torch_pair
from ipu_course.programs.doctor.poptorch_check import check_poptorch
from ipu_course.programs.doctor.probing import Probe, judge_stage


@dataclass(frozen=True)
class Result:
    """A check's name and what it found."""

    check: str
    finding: Finding


CHECKS: tuple[tuple[str, Callable[[], Finding]], ...] = (
    ("Python", check_python),
    ("packages", check_packages),
    ("torch and torchvision", check_torch_pair),
    ("poptorch", check_poptorch),
    ("cores and threads", check_threads),
    ("memory", check_memory),
    ("kernel", check_kernel),
    ("JupyterLab and widgets", check_lab),
)
# Tried in a process of their own; the second name is the probe's.
STAGES = (
    ("import torch", "torch"),
    ("import torchvision", "torchvision"),
    ("import poptorch", "poptorch"),
    ("IPU Model", "engine"),
    ("reading the data", "data"),
    ("worker process", "loader"),
)

WIDTH = 110
NAME_WIDTH = 24
SUMMARIES = {
    Verdict.PROBLEM: "Some lessons will not run yet. The command `python -m ipu_course doctor` prints what helps.",
    Verdict.NOTICE: "The lessons run here. The command `python -m ipu_course doctor` explains the notices.",
    Verdict.OK: "The lessons run here.",
}


def examine(checks: Sequence[tuple[str, Callable[[], Finding]]] = CHECKS, probe: Probe | None = None) -> list[Result]:
    """Run all checks. The probe, which takes seconds, works meanwhile."""
    probe = Probe() if probe is None else probe
    try:
        results = [Result(name, _careful(check)) for name, check in checks]
        said = probe.result()
    finally:
        probe.stop()
    return [*results, *(Result(name, judge_stage(stage, said)) for name, stage in STAGES)]


def exit_code(results: Sequence[Result]) -> int:
    """0, or 1 when there is a problem."""
    return int(any(result.finding.verdict is Verdict.PROBLEM for result in results))


def _careful(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        return problem(
            f"the check itself failed with {type(error).__name__}: {error}",
            "something on this machine is not as the course expects it",
            "show this line to whoever runs the course",
        )


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
