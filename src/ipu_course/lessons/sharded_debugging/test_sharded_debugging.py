"""Lesson 07: what its comparisons find, its exercises, and its views of sharding and of placements."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import poptorch
from ipu_course import engine
from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.sharded_debugging import lesson
from ipu_course.lessons.sharded_debugging.comparison import cases, comparison_hint
from ipu_course.lessons.sharded_debugging.exercises import COMPARISON, OVERFLOW, PLACEMENT, first_wrong
from ipu_course.lessons.sharded_debugging.placement import (
    CROWDED,
    IDLE,
    intended_profile,
    resnet_on_four_ipus,
    show_ipus,
    somebodys_placement,
    work_by_ipu,
)
from ipu_course.lessons.sharded_debugging.sharding import further_micro_batch, show_sharding, update_times
from ipu_course.lessons.sharded_debugging.stage_differences import (
    band,
    differing_stage,
    plain_outputs,
    relative_difference,
    show_differences,
)
from ipu_model import Profile


class Chain(nn.Module):
    """Small networks of 64 features, each a block; ``ipus`` says where. The loss is a mean."""

    def __init__(self, ipus: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in ipus))
        for layer, ipu in zip(self.layers, ipus):
            poptorch.BeginBlock(layer, ipu_id=ipu)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.layers(x)
        return found, poptorch.identity_loss(found, "mean")


def modelled(ipus: tuple[int, ...]) -> engine.ModelledModule:
    module = Chain(ipus)
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    return engine.modelled_module(
        module, (torch.zeros(16, 64),), options, torch.optim.SGD(module.parameters(), lr=0.1)
    )  # fmt: skip


@pytest.fixture(scope="module")
def four_ipus() -> engine.ModelledModule:
    return modelled((0, 1, 2, 3))


# --- comparing stages


@given(st.floats(0.001, 1000), st.floats(0, 2))
def test_a_difference_is_relative_to_the_largest_value(scale: float, share: float) -> None:
    reference = scale * torch.tensor([1.0, -4.0, 2.0])
    found = reference + torch.tensor([0.0, 0.0, share * 4 * scale])
    assert relative_difference(reference, found) == pytest.approx(share, rel=1e-3, abs=1e-4)
    assert differing_stage({"a": reference}, {"a": found}, tolerance=share + 0.01) is None
    assert differing_stage({"a": reference}, {"a": found}, tolerance=share - 0.01) == "a"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_wrong(number: float) -> None:
    reference = {"a": torch.ones(3), "b": torch.ones(3)}
    found = {"a": torch.ones(3).half(), "b": torch.tensor([1.0, number, 1.0]).half()}
    assert differing_stage(reference, found) == "b"
    assert first_wrong(differing_stage, reference, found) == 2
    assert band(relative_difference(reference["b"], found["b"])) == "inf or NaN"


@pytest.mark.parametrize(
    ("share", "words"), [(0.0, "below 1 %"), (0.01, "1 to 10 %"), (0.3, "10 to 50 %"), (7.0, "above 50 %")]
)
def test_differences_come_in_bands(share: float, words: str) -> None:
    assert band(share) == words


def test_plain_outputs_are_those_of_the_modules_and_leave_no_hooks() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    images = torch.randn(5, 3)
    found = plain_outputs(network, {"last": "2", "first": "0"}, images)
    assert list(found) == ["last", "first"]
    assert torch.equal(found["first"], network[0](images))
    assert torch.equal(found["last"], network(images))
    assert not any(layer._forward_hooks for layer in network)


def test_differences_are_shown_by_stage_and_case(capsys: pytest.CaptureFixture[str]) -> None:
    reference = {"B1": torch.ones(2), "B2": torch.ones(2)}
    wrong = {"B1": torch.ones(2), "B2": torch.tensor([math.nan, 1.0])}
    show_differences({"good": (reference, reference), "bad": (reference, wrong)}, "B2 is wrong.")
    shown = capsys.readouterr().out
    assert "B2 is wrong." in shown
    assert "bad: B1 below 1 %, B2 inf or NaN" in shown
    assert "B2     below 1 %  inf or NaN" in shown


# --- exercise 1


def test_the_learner_s_function_finds_the_block_once_it_is_right() -> None:
    reference = {"B1": torch.ones(3), "B2": torch.ones(3)}
    device = {"B1": torch.ones(3).half(), "B2": 2 * torch.ones(3).half()}
    asked: list[str] = []

    def learners(reference: Any, device: Any) -> str | None:
        asked.append(next(iter(reference)))
        return differing_stage(reference, device)

    def starter(reference: Any, device: Any) -> object: ...

    assert first_wrong(learners, reference, device) == 2
    assert len(asked) == len(cases()) + 1
    assert first_wrong(learners, reference, reference) == 0
    for wrong in (starter, lambda reference, device: "B1", lambda reference: None, "B1"):
        assert first_wrong(wrong, reference, device) == 2


def test_the_right_function_passes_every_case() -> None:
    assert [differing_stage(case.reference, case.device) for case in cases()] == [case.expected for case in cases()]
    assert judge(COMPARISON, [differing_stage]).correct


def test_every_case_is_far_from_the_limit_of_two_per_cent() -> None:
    shares = [
        relative_difference(case.reference[name], case.device[name]) for case in cases() for name in case.reference
    ]
    assert not any(0.01 < share < 0.04 for share in shares)


def test_each_case_alone_can_be_what_an_answer_gets_wrong() -> None:
    for number, case in enumerate(cases()):
        found = iter(range(len(cases())))

        def answer(reference: Any, device: Any, wrong: int = number, found: Any = found) -> str | None:
            name = differing_stage(reference, device)
            return ("B4" if name is None else None) if next(found) == wrong else name

        assert comparison_hint(answer) == case.hint


@given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.lists(st.integers()), st.tuples(st.integers())))
def test_no_answer_makes_a_check_raise(answer: object) -> None:
    with letting_errors_through():
        judge(COMPARISON, [answer])
        judge(COMPARISON, [lambda reference, device: answer])
        judge(OVERFLOW, [answer, answer])
        judge(OVERFLOW, [11, answer])


# --- exercise 3


@pytest.fixture(scope="module")
def faulty() -> engine.ModelledModule:
    return resnet_on_four_ipus(somebodys_placement)


def test_the_silent_fault_is_that_of_the_placement(faulty: engine.ModelledModule) -> None:
    work = work_by_ipu(faulty.profile())
    assert work.index(0) == IDLE
    assert work.index(max(work)) == CROWDED
    assert max(work) > 1.5 * sorted(work)[-2]


def test_the_lesson_s_text_has_the_modelled_times(faulty: engine.ModelledModule) -> None:
    found, intended = faulty.profile().device_seconds_per_call, intended_profile(faulty).device_seconds_per_call
    (source,) = lesson.folder.glob("07_*.py")
    opening = source.read_text(encoding="utf-8")[:800]
    for figure in (f"{1e3 * found:.1f} ms", f"{1e3 * intended:.1f} ms", f"{found / intended:.2f} times"):
        assert figure in opening
    assert f"takes {1e3 * intended:.1f} ms or less" in source.read_text(encoding="utf-8")


def test_only_the_two_numbers_are_right(faulty: engine.ModelledModule) -> None:
    for idle in range(4):
        for crowded in range(4):
            # The placement is the faulty one: right numbers lead to the hint about it.
            verdict = judge(PLACEMENT, [idle, crowded, somebodys_placement], faulty)
            assert not verdict.correct
            assert ("With your placement IPU 2 has no work" in verdict.text) == ((idle, crowded) == (IDLE, CROWDED))


# --- the cost of sharding


def test_a_pipeline_is_refused_below_its_minimum_and_sharding_is_not(four_ipus: engine.ModelledModule) -> None:
    times = update_times(four_ipus, (1, 6, 7, 20))
    assert [each.pipelined is None for each in times] == [True, True, False, False]  # 2 x 4 - 1 = 7
    assert [each.ratio is None for each in times] == [True, True, False, False]
    assert all(each.sharded.options["recomputation"] == "none" for each in times)


def test_sharded_keeps_what_the_pipeline_computes_again_or_recomputes(
    four_ipus: engine.ModelledModule,
) -> None:
    (each,) = update_times(four_ipus, (8,))
    assert each.pipelined is not None
    assert "recompute" in {span.kind for span in each.pipelined.timeline}
    assert "recompute" not in {span.kind for span in each.sharded.timeline}
    assert "recompute" in {span.kind for span in each.recomputing.timeline}
    assert each.ratio is not None
    assert each.recomputing_ratio is not None
    assert each.recomputing_ratio > each.ratio


def test_a_further_micro_batch_is_the_slope_between_the_longest_two(four_ipus: engine.ModelledModule) -> None:
    times = update_times(four_ipus, (1, 8, 16, 32))
    pipelined, sharded = further_micro_batch(times)
    assert times[2].sharded.device_seconds_per_call + 16 * sharded == pytest.approx(
        times[3].sharded.device_seconds_per_call
    )
    assert times[2].pipelined is not None
    assert times[3].pipelined is not None
    assert times[2].pipelined.device_seconds_per_call + 16 * pipelined == pytest.approx(
        times[3].pipelined.device_seconds_per_call
    )


def test_one_pipeline_has_no_slope(four_ipus: engine.ModelledModule) -> None:
    with pytest.raises(ValueError, match="two updates"):
        further_micro_batch(update_times(four_ipus, (1, 8)))


def test_the_cost_is_told_in_words_or_not_at_all(
    four_ipus: engine.ModelledModule, capsys: pytest.CaptureFixture[str]
) -> None:
    published = lesson.published("further_micro_batch")
    show_sharding(update_times(four_ipus, (1, 8, 16)), published)
    assert "accumulation 1: sharded" in (shown := capsys.readouterr().out)
    assert "pipelined refused" in shown
    assert "times if it recomputes them" in shown
    assert "Sharded execution also runs 1 micro-batch, which the pipeline refuses." in shown
    assert f"derived: {published.text} [2]" in shown
    show_sharding(update_times(engine.NOT_MODELLED, (1, 8)), published)
    assert capsys.readouterr().out == f"{engine.NOT_HERE}\n"


def test_the_published_micro_batch_is_that_of_the_two_traces() -> None:
    # The phases of IPU 0 in both traces, without ExternalSync; 8 - 3 micro-batches, at 1.33 GHz.
    long, short = 56_541_731 - 3_612_795, 24_342_210 - 3_685_373
    assert lesson.published("further_micro_batch").value == pytest.approx((long - short) / 5 / 1.33e6, abs=0.005)


# --- placements


def test_the_work_of_an_ipu_is_that_of_all_its_stages(four_ipus: engine.ModelledModule) -> None:
    profile = four_ipus.profile()
    alone = work_by_ipu(profile)
    assert len(alone) == 4
    assert sum(alone) == pytest.approx(_all_passes(profile))
    doubled = work_by_ipu(modelled((0, 1, 1, 3)).profile())
    assert doubled[2] == 0
    assert doubled[1] > 1.5 * alone[1]


def _all_passes(profile: Profile) -> float:
    """Seconds of the passes of the first micro-batch, each of which the timeline has once for each stage."""
    first: dict[tuple[int | None, str], float] = {}
    for span in profile.timeline:
        if span.kind in ("forward", "recompute", "backward"):
            first.setdefault((span.stage, span.kind), span.seconds / span.repeats)
    return sum(first.values())


def test_placements_are_told_in_words_or_not_at_all(
    four_ipus: engine.ModelledModule, capsys: pytest.CaptureFixture[str]
) -> None:
    show_ipus({"as found": modelled((0, 1, 1, 3)).profile(), "repaired": four_ipus.profile()})
    shown = capsys.readouterr().out
    assert "as found: " in shown
    assert "0.0 ms, 0 KiB" in shown
    show_ipus({"as found": engine.NOT_MODELLED})
    assert capsys.readouterr().out == f"{engine.NOT_HERE}\n"
