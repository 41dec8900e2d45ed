"""The doctor on folders: data, notebooks, and where the learner's files go."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ipu_course.doctor import data_checks, writing_checks
from ipu_course.doctor.data_checks import CIFAR10_MARK, MNIST_MARK, judge_data, judge_optional_data
from ipu_course.doctor.finding import Verdict
from ipu_course.doctor.jupyter_checks import check_notebooks, judge_notebooks
from ipu_course.doctor.writing_checks import judge_current_folder, judge_progress

# --- data


def test_the_shipped_data_are_complete(project: Path) -> None:
    finding = judge_data(project / "data")
    assert finding.verdict is Verdict.OK


@pytest.mark.parametrize("name", ["digits.npz", "published_day03.json"])
def test_a_missing_or_empty_file_is_named(project: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    shutil.copytree(project / "data", folder)
    (folder / name).write_bytes(b"")
    assert name in judge_data(folder).what
    (folder / name).unlink()
    finding = judge_data(folder)
    assert finding.verdict is Verdict.PROBLEM
    assert name in finding.what


@pytest.mark.parametrize("exists", [True, False])
def test_no_data_folder(tmp_path: Path, exists: bool) -> None:
    assert judge_data(tmp_path if exists else None).verdict is Verdict.PROBLEM


def test_a_data_folder_chosen_by_variable_is_the_one_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPU_COURSE_DATA", str(tmp_path))
    assert str(tmp_path) in data_checks.check_data().what


def test_optional_data_are_named_and_never_missed(tmp_path: Path) -> None:
    assert judge_optional_data([tmp_path]).verdict is Verdict.OK
    for mark, name in ((MNIST_MARK, "MNIST"), (CIFAR10_MARK, "CIFAR-10")):
        (tmp_path / name / mark).parent.mkdir(parents=True)
        (tmp_path / name / mark).touch()
    found = judge_optional_data([tmp_path / "MNIST", tmp_path / "CIFAR-10"])
    assert found.what == "MNIST and CIFAR-10 found"


# --- notebooks


def test_the_lessons_are_here() -> None:
    assert check_notebooks().verdict is Verdict.OK


def test_no_lesson(tmp_path: Path) -> None:
    assert judge_notebooks(None).verdict is Verdict.PROBLEM
    assert judge_notebooks(tmp_path).verdict is Verdict.PROBLEM


def test_half_a_notebook(tmp_path: Path) -> None:
    (tmp_path / "00_start_here.ipynb").write_text('{"cells": [{}], "nbformat": 4}', encoding="utf-8")
    assert judge_notebooks(tmp_path).verdict is Verdict.OK
    (tmp_path / "01_cut_short.ipynb").write_text('{"cells": [', encoding="utf-8")
    finding = judge_notebooks(tmp_path)
    assert finding.verdict is Verdict.PROBLEM
    assert finding.what == "damaged: 01_cut_short.ipynb"


# --- writing


def test_a_progress_file_that_can_be_made_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "not there yet" / "progress.json"
    assert judge_progress(file).verdict is Verdict.OK
    assert list(tmp_path.iterdir()) == []


def test_a_progress_file_in_no_ones_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing_checks, "may_write", lambda folder: False)
    finding = judge_progress(tmp_path / "progress.json")
    assert finding.verdict is Verdict.NOTICE
    assert "IPU_COURSE_PROGRESS" in finding.cure


def test_a_folder_in_place_of_the_progress_file(tmp_path: Path) -> None:
    assert judge_progress(tmp_path).verdict is Verdict.NOTICE


def test_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(writing_checks, "progress_file", homeless)
    assert writing_checks.check_progress().verdict is Verdict.NOTICE


def test_the_current_folder(tmp_path: Path) -> None:
    assert judge_current_folder(tmp_path).verdict is Verdict.OK
    assert list(tmp_path.iterdir()) == []
    assert judge_current_folder(tmp_path / "gone").verdict is Verdict.NOTICE
