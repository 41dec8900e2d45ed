"""The doctor on Python and packages: supported, present, as pinned, torch and torchvision belonging together."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ipu_course.programs.doctor import environment
from ipu_course.programs.doctor.environment import (
    built_for,
    judge_packages,
    judge_python,
    judge_torch_pair,
    pinned_packages,
)
from ipu_course.programs.doctor.examination import CHECKS
from ipu_course.programs.doctor.finding import Finding, Severity

NEEDED = [Requirement("numpy>=1.22"), Requirement("tqdm>=4.64")]
PINNED = [Requirement("numpy==2.4.6"), Requirement("ruff==0.17.5")]
ASKED = [Requirement("torchvision"), Requirement("torch>=2.14.0")]  # what torchvision 0.29.1's metadata say


def judged(installed: dict[str, str], pinned: list[Requirement] = PINNED) -> Finding:
    return judge_packages(NEEDED, pinned, installed.get)


# --- Python


def test_the_supported_pythons_are_those_of_the_set_up(project: Path) -> None:
    script = (project / "tools" / "setup.sh").read_text(encoding="utf-8")
    limits = tuple(int(re.search(rf"^{name}=(\d+)", script, re.MULTILINE)[1]) for name in ("oldest", "newest"))
    assert limits == (environment.OLDEST_WITH_IPU_MODEL[1], environment.NEWEST_WITH_IPU_MODEL[1])


@pytest.mark.parametrize(
    ("version", "with_ipu_model", "verdict"),
    [
        ((3, 10), True, Severity.OK),
        ((3, 14), True, Severity.OK),
        ((3, 9), True, Severity.PROBLEM),
        ((3, 15), True, Severity.PROBLEM),
        ((3, 8), False, Severity.OK),  # an SDK machine
        ((3, 7), False, Severity.PROBLEM),
    ],
)
def test_pythons(version: tuple[int, int], with_ipu_model: bool, verdict: Severity) -> None:
    finding = judge_python(version, with_ipu_model)
    assert finding.verdict is verdict
    assert bool(finding.cure) is (verdict is Severity.PROBLEM)


def test_the_python_of_the_tests_is_supported() -> None:
    assert dict(CHECKS)["Python"]().verdict is Severity.OK


# --- packages


def test_everything_as_pinned() -> None:
    assert judged({"numpy": "2.4.6", "tqdm": "4.70.1", "ruff": "0.17.5"}).verdict is Severity.OK


def test_a_package_that_the_lessons_import_is_missing() -> None:
    finding = judged({"numpy": "2.4.6", "ruff": "0.17.5"})
    assert finding.verdict is Severity.PROBLEM
    assert "tqdm is missing" in finding.what


def test_a_package_that_is_too_old() -> None:
    finding = judged({"numpy": "1.21", "tqdm": "4.70.1", "ruff": "0.17.5"})
    assert finding.verdict is Severity.PROBLEM
    assert "numpy 1.21 (>=1.22 is needed)" in finding.what


@pytest.mark.parametrize("installed", [{"ruff": "0.17.5", "numpy": "2.4.5"}, {"numpy": "2.4.6"}])
def test_a_difference_from_the_pins_is_only_a_notice(installed: dict[str, str]) -> None:
    """A tool for developers that is missing stops no lesson."""
    finding = judged({"tqdm": "4.70.1", **installed})
    assert finding.verdict is Severity.NOTICE
    assert "differ from the versions pinned" in finding.what


def test_an_sdk_machine_has_no_pins_to_differ_from() -> None:
    assert judged({"numpy": "1.26", "tqdm": "4.64"}, pinned=[]).verdict is Severity.OK


def test_many_differences_are_counted_rather_than_listed() -> None:
    many = [Requirement(f"package{number}==1") for number in range(20)]
    finding = judged({"numpy": "2.4.6", "tqdm": "4.70.1"}, pinned=many)
    assert finding.what.endswith(f"and {20 - environment.SHOWN} more.")


def test_pins_for_other_pythons_and_systems_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    here = "{}.{}".format(*sys.version_info[:2])
    file.write_text(
        f"# made\n-e .\nold==1 ; python_version < '3'\nhere==2 ; python_version == '{here}'\nall==3  # why\n",
        encoding="utf-8",
    )
    assert [str(pin.name) for pin in pinned_packages(file)] == ["here", "all"]


def test_both_of_our_distributions_are_asked_what_they_need() -> None:
    names = {each.name for each in environment.needed_packages()}
    assert {"matplotlib", "ipywidgets", "jupyterlab", "ipykernel", "torch"} <= names
    assert "hypothesis" not in names


# --- torch and torchvision


@pytest.mark.parametrize("torch", ["2.14.1", "2.14.1+cpu"])
def test_a_pair_that_belongs_together(torch: str) -> None:
    assert judge_torch_pair(ASKED, {"torch": torch, "torchvision": "0.29.1"}.get).verdict is Severity.OK


def test_a_torchvision_for_another_torch() -> None:
    finding = judge_torch_pair(ASKED, {"torch": "2.13.0", "torchvision": "0.29.1"}.get)
    assert finding.verdict is Severity.PROBLEM
    assert "torch 2.13.0 (>=2.14.0 is needed)" in finding.what


def test_a_missing_torchvision() -> None:
    finding = judge_torch_pair(ASKED, {"torch": "2.14.1"}.get)
    assert finding.verdict is Severity.PROBLEM
    assert finding.what.endswith(": torchvision is missing.")


def test_torchvision_here_says_which_torch_it_is_built_for() -> None:
    """Otherwise the check above would have nothing to compare."""
    assert [str(each.specifier)[:2] for each in built_for("torchvision", "torch")] == ["", ">="]
