"""All checks in their order. No check can end the examination or hold it up."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Callable, Tuple

from ipu_course import engine
from ipu_course.course_files import PACKAGE
from ipu_course.programs.doctor.environment import (
    built_for,
    folder_of,
    folder_of_graphcores_poptorch,
    judge_packages,
    judge_poptorch,
    judge_python,
    judge_torch_pair,
    needed_packages,
    pinned_packages,
)
from ipu_course.programs.doctor.finding import INSTALL, WITH_SDK, CheckResult, Finding, problem
from ipu_course.programs.doctor.jupyter import check_kernel, find_extension, judge_lab, lab_packages
from ipu_course.programs.doctor.machine import THREADS, available_memory, judge_memory, judge_threads, usable_cores
from ipu_course.programs.doctor.probe import probe

Check = Tuple[str, Callable[[], Finding]]

PINS = PACKAGE.parents[1] / "requirements.txt"  # of a clone
CHECKS: tuple[Check, ...] = (
    ("Python", lambda: judge_python(sys.version_info[:2], engine.is_available())),
    ("packages", lambda: judge_all_packages(engine.is_available())),
    ("torch and torchvision", lambda: judge_torch_pair(built_for("torchvision", "torch"))),
    (
        "poptorch",
        lambda: judge_poptorch(
            folder_of("poptorch"),
            folder_of("ipu_model") if engine.is_available() else None,
            folder_of_graphcores_poptorch(),
        ),
    ),
    ("cores and threads", lambda: judge_threads(os.cpu_count() or 1, usable_cores(), os.environ.get(THREADS, ""))),
    ("memory", lambda: judge_memory(available_memory())),
    ("kernel", check_kernel),
    ("JupyterLab and widgets", lambda: judge_lab(lab_packages(), find_extension(), Path(sys.prefix))),
)


def judge_all_packages(with_ipu_model: bool) -> Finding:
    """Judge the course's packages; an SDK decides on versions of its own, and a wheel knows no pins."""
    if with_ipu_model:
        return judge_packages(needed_packages(), pinned_packages(PINS))
    return judge_packages(needed_packages(), [], cure=WITH_SDK)


def examine() -> list[CheckResult]:
    """Run all checks, and then what takes seconds and is tried in a process of its own."""
    return [*(CheckResult(name, careful(check)) for name, check in CHECKS), *probe()]


def careful(check: Callable[[], Finding]) -> Finding:
    """Run a check; when it raises, that is the finding."""
    try:
        return check()
    except ImportError as error:
        return problem(f"The package {error.name!r} is missing.", "The lessons, or JupyterLab, need it.", INSTALL)
    except Exception as error:
        return problem(
            f"The check itself failed with {type(error).__name__}: {error}",
            "Something on this machine differs from what the course expects.",
            "Show this line to the person who runs the course.",
        )
