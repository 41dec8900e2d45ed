"""All checks in their order; none of them can end the examination or hold it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Sequence

from ipu_course.doctor.finding import Finding, Verdict, problem
from ipu_course.doctor.jupyter_checks import check_kernel, check_lab
from ipu_course.doctor.machine_checks import check_memory, check_threads
from ipu_course.doctor.packages_check import check_packages, check_python, check_torch_pair
from ipu_course.doctor.poptorch_check import check_poptorch
from ipu_course.doctor.probing import Probe, judge_stage


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
