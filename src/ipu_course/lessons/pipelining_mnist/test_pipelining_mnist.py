"""Lesson 06: the exercises accept exactly what the formulas say, whatever is written; wrong answers: see the corpus."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import poptorch
from ipu_course.checks import letting_errors_through
from ipu_course.lessons.pipelining_mnist.checks import check_busy_call, check_two_stages

TWO_STAGES = poptorch.PipelinedExecution(poptorch.Stage("B1", "B2").ipu(0), poptorch.Stage("B3", "B4").ipu(1))


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPU_COURSE_PROGRESS", str(tmp_path / "progress.json"))


def test_only_the_minimum_of_two_stages_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    for accumulation in range(1, 20):
        check_two_stages(TWO_STAGES, accumulation)
        assert (": correct." in capsys.readouterr().out) == (accumulation == 2 * 2 - 1)


def test_only_the_smallest_busy_accumulation_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    # m / (m + 6) >= 4 / 5 from m = 24 on; 4,800 images are 5 updates of 40 x 24.
    assert min(m for m in range(1, 100) if 5 * m >= 4 * (m + 6)) == 24
    for accumulation in range(1, 50):
        for iterations in (4, 5, 6, 10):
            check_busy_call(accumulation, iterations)
            assert (": correct." in capsys.readouterr().out) == ((accumulation, iterations) == (24, 5))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.lists(st.integers())))
def test_no_answer_makes_a_check_raise(answer: object) -> None:
    with letting_errors_through():
        check_two_stages(answer, 3)
        check_two_stages(TWO_STAGES, answer)
        check_busy_call(answer, 5)
        check_busy_call(24, answer)
