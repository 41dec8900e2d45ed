"""Lesson 06: its schedules, placements and figures say what the engine and the schedule's rules say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from ipu_course import engine
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.pipelining_mnist import (
    captured_resnet,
    lesson,
    run_program,
    show_all_placements,
    show_schedule,
    show_strategies,
)
from ipu_course.lessons.pipelining_mnist.exercises import HOST, PLACEMENT, STASHES, WHEN
from ipu_course.lessons.pipelining_mnist.learner_schedule import schedule_of
from ipu_course.lessons.pipelining_mnist.placements import BEST, BLOCKS, PLACEMENTS, best_seconds, estimated_seconds
from ipu_course.programs.mnist.model import Network, TrainingModelWithLoss
from ipu_course.schedule import interleaved, pipelined

TILE_KIB = 624


@pytest.fixture(scope="module")
def resnet() -> engine.ModelledModule:
    return captured_resnet()


def best_place(network: torch.nn.Module) -> None:
    """Place ResNet-101 as ``BEST`` says."""
    for ipu, name in enumerate(BEST, start=1):
        poptorch.BeginBlock(network.get_submodule(name), ipu_id=ipu)


def test_the_poptorch_schedule_is_right_and_any_delay_is_not() -> None:
    assert judge(WHEN, [lambda stage, m: (stage + m, 6 - stage + m)]).correct
    assert not judge(WHEN, [lambda stage, m: (stage + m + 1, 7 - stage + m)]).correct


@given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.lists(st.integers()), st.tuples(st.integers())))
def test_no_answer_makes_a_check_raise(answer: object) -> None:
    with letting_errors_through():
        judge(WHEN, [answer])
        judge(WHEN, [lambda stage, m: answer])
        judge(STASHES, [answer, answer, answer])
        judge(HOST, [answer, answer])


def test_the_stashes_are_those_of_the_schedules() -> None:
    answers = [schedule(8, 20).stash(0) for schedule in (pipelined, interleaved)]
    busy_enough = next(m for m in range(1, 200) if pipelined(8, m).busy_share(2.0) >= 0.9)
    assert judge(STASHES, [busy_enough, *answers]).correct


def test_a_schedule_with_all_forward_passes_first_is_as_fast_and_is_told_what_it_costs() -> None:
    def gpipe(stage: int, m: int) -> tuple[int, int]:
        return stage + m, 16 - stage + m

    assert schedule_of(gpipe, 4, 10).busy_share(2.0) == pytest.approx(pipelined(4, 10).busy_share(2.0))
    assert "10 micro-batches wait in the stash of IPU 0" in judge(WHEN, [gpipe]).text
    assert "stash" not in judge(WHEN, [lambda stage, m: (7 * m + stage, 7 * m + 6 - stage)]).text


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
    assert len(estimates) == PLACEMENTS == 33 * 32 * 31 // 6
    assert len(BLOCKS) == 33
    best = best_seconds(resnet)
    near = [names for names, seconds in estimates.items() if seconds < estimates[BEST] + 0.04 * best]
    assert len(near) > 1
    for names in near:
        profile = resnet.profile(split=[f"model.{name}" for name in names])
        fits = profile.memory.max_tile_bytes <= TILE_KIB * 1024
        assert names == BEST or not fits or profile.device_seconds_per_call >= best
    assert resnet.profile(split=[f"model.{name}" for name in BEST]).memory.max_tile_bytes <= TILE_KIB * 1024


def test_the_score_is_the_time_of_the_learner_s_update(resnet: engine.ModelledModule) -> None:
    verdict = judge(PLACEMENT, [best_place], resnet)
    assert verdict.correct
    assert verdict.points is not None
    assert verdict.points.value == pytest.approx(1e3 * best_seconds(resnet), rel=1e-3)
    assert verdict.points.better == "lower"


def test_the_figure_of_all_placements_marks_the_learner_s(
    resnet: engine.ModelledModule, capsys: pytest.CaptureFixture[str]
) -> None:
    show_all_placements(resnet, best_place)
    best = f"{1e3 * best_seconds(resnet):.1f} ms"
    assert f"Marked: the best that fits: {best}, yours: {best}." in capsys.readouterr().out

    def place(network: torch.nn.Module) -> object: ...

    show_all_placements(resnet, place)
    assert f"Marked: the best that fits: {best}." in capsys.readouterr().out


def test_strategies_compile_or_say_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    def build(options: poptorch.Options) -> poptorch.PoplarExecutor:
        model = TrainingModelWithLoss(Network())
        return poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters()))

    pipelined_over = poptorch.PipelinedExecution
    show_strategies(
        {
            "default": pipelined_over(),
            "counted": pipelined_over(poptorch.AutoStage.AutoIncrement),
            "explicit": pipelined_over("B1", "B2", "B3", "B4"),
        },
        build,
        torch.zeros(320, 1, 28, 28),
        torch.zeros(320, dtype=torch.int64),
        accumulation=8,
    )
    default, counted, explicit = capsys.readouterr().out.splitlines()
    assert "no IPU was specified for block B1" in default
    assert "number of pipeline stages (9)" in counted  # five stages there and back: 2 x 5 - 1
    assert explicit == "explicit: compiles"
