"""`doctor --preflight` executes a lesson in a fresh kernel, within a time limit."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from ipu_course.programs.doctor.finding import Severity
from ipu_course.programs.doctor.preflight import run_lesson

SECONDS = 300.0
KERNELSPEC = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def folder_with(tmp_path: Path, code: str) -> Path:
    notebook = new_notebook(cells=[new_code_cell(code)], metadata=KERNELSPEC)
    nbformat.write(notebook, tmp_path / "00_start_here.ipynb")
    return tmp_path


def test_a_lesson_that_runs(tmp_path: Path) -> None:
    """Its progress goes to a file that is thrown away, and the notebook itself is not changed."""
    folder = folder_with(tmp_path, "import os; assert os.environ['IPU_COURSE_PROGRESS']; open('seen', 'w').close()")
    before = (folder / "00_start_here.ipynb").read_bytes()
    finding = run_lesson("00", SECONDS, folder)
    assert finding.verdict is Severity.OK, finding.what
    assert finding.what.startswith("00_start_here ran in a fresh kernel in ")
    assert (folder / "seen").exists()
    assert (folder / "00_start_here.ipynb").read_bytes() == before


def test_a_lesson_that_raises(tmp_path: Path) -> None:
    finding = run_lesson("00", SECONDS, folder_with(tmp_path, "import torch_of_tomorrow"))
    assert finding.verdict is Severity.PROBLEM
    assert "ModuleNotFoundError: No module named 'torch_of_tomorrow'" in finding.what


def test_a_lesson_that_never_ends(tmp_path: Path) -> None:
    finding = run_lesson("00", 4, folder_with(tmp_path, "import time; time.sleep(600)"))
    assert finding.verdict is Severity.PROBLEM
    assert finding.what == "00_start_here did not end within 4 seconds."


def test_a_kernel_that_dies(tmp_path: Path) -> None:
    finding = run_lesson("00", SECONDS, folder_with(tmp_path, "import os; os._exit(9)"))
    assert finding.verdict is Severity.PROBLEM
    assert finding.what == "The kernel died in 00_start_here."


def test_no_such_lesson(tmp_path: Path) -> None:
    finding = run_lesson("42", SECONDS, folder_with(tmp_path, "1"))
    assert finding.verdict is Severity.PROBLEM
    assert finding.cure == "The lessons here are: 00_start_here."


def test_without_nbclient_it_is_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nbclient.exceptions", None)
    finding = run_lesson("00", SECONDS, folder_with(tmp_path, "1"))
    assert finding.verdict is Severity.NOTICE
