"""The doctor on poptorch: which one an import finds, and whether something hides it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipu_course.programs.doctor.environment import judge_poptorch
from ipu_course.programs.doctor.examination import CHECKS
from ipu_course.programs.doctor.finding import Severity

MODEL = Path("/env/ipu_model")
MODELS_POPTORCH = Path("/env/poptorch")
GRAPHCORE = Path("/sdk/site-packages/poptorch")


def test_the_ipu_models() -> None:
    finding = judge_poptorch(MODELS_POPTORCH, MODEL, None)
    assert (finding.verdict, finding.what) == (Severity.OK, "`import poptorch` finds the IPU Model's poptorch.")


def test_graphcores() -> None:
    finding = judge_poptorch(GRAPHCORE, None, GRAPHCORE)
    assert (finding.verdict, finding.what) == (Severity.OK, "`import poptorch` finds Graphcore's poptorch.")


@pytest.mark.parametrize("found", [MODELS_POPTORCH, GRAPHCORE])
def test_both_at_once_is_a_problem_whichever_is_imported(found: Path) -> None:
    finding = judge_poptorch(found, MODEL, GRAPHCORE)
    assert finding.verdict is Severity.PROBLEM
    assert "pip uninstall" in finding.cure


def test_none() -> None:
    assert judge_poptorch(None, None, None).verdict is Severity.PROBLEM


@pytest.mark.parametrize(("model", "graphcore"), [(MODEL, None), (None, GRAPHCORE)])
def test_a_file_that_hides_it_is_named(model: Path | None, graphcore: Path | None) -> None:
    finding = judge_poptorch(Path("/home/learner/poptorch.py"), model, graphcore)
    assert finding.verdict is Severity.PROBLEM
    assert "Rename or move /home/learner/poptorch.py" in finding.cure


def test_a_folder_that_hides_it_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poptorch").mkdir()
    (tmp_path / "poptorch" / "__init__.py").write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "poptorch", raising=False)
    finding = dict(CHECKS)["poptorch"]()
    assert finding.verdict is Severity.PROBLEM
    assert str(tmp_path / "poptorch") in finding.what


def test_here_it_is_the_ipu_models() -> None:
    assert dict(CHECKS)["poptorch"]().what == "`import poptorch` finds the IPU Model's poptorch."
