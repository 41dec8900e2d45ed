"""Lesson 06: its schedules, placements and figures say what the engine and the schedule's rules say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from ipu_course import engine, ladder, models
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.pipelining_mnist import lesson, run_program, show_schedule
from ipu_course.lessons.pipelining_mnist.exercises import HOST, STASHES, WHEN
from ipu_course.lessons.pipelining_mnist.placements import BEST, BLOCKS, best_seconds, estimated_seconds
from ipu_course.schedule import interleaved, pipelined

TILE_KIB = 624


@pytest.fixture(scope="module")
def resnet() -> engine.ModelledModule:
    network = torchvision.models.resnet101()
    options = poptorch.Options()
    options.Training.gradientAccumulation(16)
    optimizer = poptorch.optim.AdamW(network.parameters())
    return engine.modelled_module(
        models.ClassifierWithLoss(network), ladder.micro_batch(torch.float32), options, optimizer
    )  # fmt: skip


def test_the_poptorch_schedule_is_right_and_any_delay_is_not() -> None:
    assert judge(WHEN, [lambda stage, m: (stage + m, 6 - stage + m)]).correct
    assert not judge(WHEN, [lambda stage, m: (stage + m + 1, 7 - stage + m)]).correct


@given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.lists(st.integers()), st.tuples(st.integers())))
def test_no_answer_makes_a_check_raise(answer: object) -> None:
    with letting_errors_through():
        judge(WHEN, [answer])
        judge(WHEN, [lambda stage, m: answer])
        judge(STASHES, [answer, answer])
        judge(HOST, [answer, answer])


def test_the_stashes_are_those_of_the_schedules() -> None:
    answers = [schedule(8, 20).stash(0) for schedule in (pipelined, interleaved)]
    assert judge(STASHES, answers).correct


def test_the_host_exercise_accepts_the_trace_and_the_model() -> None:
    call = 1000 / lesson.published("calls_per_second").value
    for device in (lesson.published("device_milliseconds").value, 9.9):
        assert judge(HOST, [100 * device / call, call / device]).correct


def test_an_unwritten_schedule_is_not_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    def when(stage: int, micro_batch: int) -> object: ...

    show_schedule(when)  # type: ignore[arg-type]  # a starter
    assert "first" in capsys.readouterr().out


def test_the_program_runs_in_a_folder_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    before = Path.cwd()
    run_program("--gradient-accumulation 6")
    shown = capsys.readouterr().out
    assert shown.startswith("$ python -m ipu_course mnist --gradient-accumulation 6\n")
    assert "cannot fill the pipeline" in shown
    assert Path.cwd() == before


def test_the_estimate_of_an_update_differs_from_its_profile_by_the_transfers_only(
    resnet: engine.ModelledModule,
) -> None:
    estimates = estimated_seconds(resnet.profile(split=[f"model.{name}" for name in BEST]))
    transfers = best_seconds(resnet) - estimates[BEST]
    for names in (("layer3.0", "layer3.8", "layer3.16"), ("layer2.1", "layer3.4", "layer3.14")):
        seconds = resnet.profile(split=[f"model.{name}" for name in names]).device_seconds_per_call
        assert seconds == pytest.approx(estimates[names] + transfers, rel=0.02)


def test_no_placement_that_fits_is_faster_than_the_best(resnet: engine.ModelledModule) -> None:
    # Estimates are within 2 % of the profiles (the test above), so a faster placement is among those within 4 %.
    estimates = estimated_seconds(resnet.profile(split=[f"model.{name}" for name in BEST]))
    assert len(estimates) == 5456  # 33 x 32 x 31 / 6
    assert len(BLOCKS) == 33
    best = best_seconds(resnet)
    near = [names for names, seconds in estimates.items() if seconds < estimates[BEST] + 0.04 * best]
    assert len(near) > 1
    for names in near:
        profile = resnet.profile(split=[f"model.{name}" for name in names])
        fits = profile.memory.max_tile_bytes <= TILE_KIB * 1024
        assert names == BEST or not fits or profile.device_seconds_per_call >= best
    assert resnet.profile(split=[f"model.{name}" for name in BEST]).memory.max_tile_bytes <= TILE_KIB * 1024
