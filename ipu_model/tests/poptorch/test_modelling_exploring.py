"""A compiled program, a plain module or a profile with other options: `what_if`, `sweep` and `advise`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_support import inference, quiet
from modelling_support import Chain, trainable

import ipu_model
import poptorch
from ipu_model import HostWork
from ipu_model.explore.options import OPTIONS, with_options
from ipu_model.front_ends import program_of_module
from ipu_model.predict import profile_program
from ipu_model.predict.program import Program
from ipu_model.report.files import from_json, read_report, to_json, write_report
from ipu_model.sources import profile_of_source

X = torch.ones(8, 8)
SLOW = HostWork(seconds_per_sample=1e-3)
# The arguments of a plain module that is trained as the executor's.
OF_MODULE: dict[str, Any] = {"inputs": (X, X), "options": trainable(2, 4), "training": True}


@pytest.fixture(scope="module")
def executor() -> poptorch.PoplarExecutor:
    executor = poptorch.trainingModel(Chain(2), trainable(2, 4))
    executor.compile(X, X)
    return executor


def test_what_if_is_what_compiling_with_that_option_gives(executor: poptorch.PoplarExecutor) -> None:
    other = poptorch.trainingModel(Chain(2), trainable(2, 4).deviceIterations(3))
    other.compile(torch.ones(24, 8), torch.ones(24, 8))
    asked, wanted = ipu_model.what_if(executor, device_iterations=3), ipu_model.profile(other)
    assert asked.samples_per_call == wanted.samples_per_call
    assert asked.device_seconds_per_call == pytest.approx(wanted.device_seconds_per_call)
    assert asked.memory.max_tile_bytes == wanted.memory.max_tile_bytes


def test_half_precision_is_what_compiling_in_half_precision_gives() -> None:
    """Weights, inputs and outputs: all that crosses the host link is half as large, too."""
    full, half = (inference(model, quiet().deviceIterations(2)) for model in (Chain(2), Chain(2).half()))
    full.compile(torch.ones(16, 8))
    half.compile(torch.ones(16, 8).half())
    assert ipu_model.what_if(full, half_precision=True) == ipu_model.profile(half)


def test_no_change_is_the_programs_own_profile_which_stays_as_it_is(executor: poptorch.PoplarExecutor) -> None:
    before = ipu_model.profile(executor)
    assert ipu_model.what_if(executor) == before
    ipu_model.what_if(executor, gradient_accumulation=64, half_precision=True)
    assert ipu_model.profile(executor) == before
    of_module = ipu_model.what_if(Chain(2), **OF_MODULE, gradient_accumulation=8)
    assert of_module.samples_per_second == ipu_model.what_if(executor, gradient_accumulation=8).samples_per_second


def test_more_accumulation_never_slows_the_device_and_too_little_says_why(executor: poptorch.PoplarExecutor) -> None:
    first, *points = ipu_model.sweep(executor, "gradient_accumulation", [1, 3, 4, 8, 16, 64])
    assert first.profile is None
    assert "at least 2 x 2 - 1 = 3" in first.refused
    rates = [point.profile.device_samples_per_second for point in points if point.profile is not None]
    assert len(rates) == 5
    assert rates == sorted(rates)


def test_other_changes_hold_for_every_point_also_of_a_plain_module() -> None:
    points = ipu_model.sweep(Chain(2), "replicas", [1, 2], **OF_MODULE, execution="sharded")
    first, second = (point.profile for point in points)
    assert second.samples_per_call == 2 * first.samples_per_call
    assert (first.options["execution"], second.options["execution"]) == ("sharded", "sharded")


def without_program(executor: poptorch.PoplarExecutor) -> ipu_model.Profile:
    return from_json(to_json(ipu_model.profile(executor)))


NO_HOST = r"host takes an ipu_model\.HostWork, not a float"


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda executor: ipu_model.what_if(executor, batch=3), "no option 'batch'"),
        (lambda executor: ipu_model.sweep(executor, "speed", [1]), "no option 'speed'"),
        (lambda executor: ipu_model.sweep(executor, None, [1]), "no option 'None'"),
        (lambda executor: ipu_model.what_if(Chain(1)), "got a Chain"),
        (lambda executor: ipu_model.what_if(inference(Chain(1))), "not been compiled"),
        (lambda executor: ipu_model.what_if(without_program(executor)), "no program to explore"),
        (lambda executor: ipu_model.advise(Chain(2)), "also give its inputs and options"),
        (lambda executor: ipu_model.advise(Chain(2), inputs=(X, X)), "needs both"),
        (lambda executor: ipu_model.advise(executor, training=True), "Only a plain module takes training"),
        (lambda executor: ipu_model.what_if(executor, host=0.001), NO_HOST),
        (lambda executor: ipu_model.sweep(executor, "replicas", [1], host=0.001), NO_HOST),
        (lambda executor: ipu_model.advise(executor, host=0.001), NO_HOST),
        (lambda executor: ipu_model.make_it_fit(executor, host=0.001), NO_HOST),
    ],
)
def test_mistakes(executor: poptorch.PoplarExecutor, ask: Callable[[Any], object], words: str) -> None:
    with pytest.raises(poptorch.Error, match=words):
        ask(executor)


def test_gains_are_modelled_and_the_most_useful_comes_first(executor: poptorch.PoplarExecutor) -> None:
    """Speed for each unit of risk: a change that leaves results alone counts four times one of the numerics."""
    items = ipu_model.advise(executor)
    item = next(item for item in items if item.change.startswith("gradient accumulation"))
    value = int(item.change.split()[-1])
    after = ipu_model.what_if(executor, gradient_accumulation=value)
    factor = after.samples_per_second / ipu_model.profile(executor).samples_per_second
    assert item.samples_per_second_factor == pytest.approx(factor)
    assert item.how == f"opts.Training.gradientAccumulation({value})"
    gains = [math.log(item.samples_per_second_factor) / 2 ** int(item.risk) for item in items]
    assert gains == sorted(gains, reverse=True)
    assert min(item.samples_per_second_factor for item in items) >= 1.02


def test_only_a_module_can_have_another_micro_batch_at_the_same_global_batch() -> None:
    def given(rows: int, accumulation: int) -> dict[str, Any]:
        inputs = (torch.ones(rows, 8), torch.ones(rows, 8))
        return {"inputs": inputs, "options": trainable(1, accumulation), "training": True, "micro_batch": True}

    before, after = (ipu_model.profile_module(Chain(1), **given(*counts)) for counts in ((4, 8), (8, 4)))
    advice = {item.kind: item for item in ipu_model.advise(Chain(1), **given(4, 8))}
    item = advice.pop("micro_batch")
    assert item.change == "micro-batch: 4 -> 8, gradient accumulation: 8 -> 4"
    assert item.how.startswith("opts.Training.gradientAccumulation(4)\nbatch_size=8")
    assert item.samples_per_second_factor == pytest.approx(after.samples_per_second / before.samples_per_second)
    assert {item.kind for item in ipu_model.advise(before)} == set(advice)


def test_the_hosts_work_is_kept(executor: poptorch.PoplarExecutor, tmp_path: Path) -> None:
    without, profile = ipu_model.profile(executor), ipu_model.profile(executor, host=SLOW)
    assert profile.limited_by == "host loader"
    wanted = list(ipu_model.advise(profile.program, host=SLOW))
    assert wanted[0].change.startswith("loader workers")
    assert list(ipu_model.advise(profile)) == wanted
    assert list(ipu_model.advise(executor, profile=profile)) == wanted
    # A profile with another host is not what changes are compared with.
    assert list(ipu_model.advise(executor, profile=without, host=SLOW)) == wanted
    assert ipu_model.what_if(profile) == profile
    assert ipu_model.profile(profile) == profile
    assert ipu_model.sweep(profile, "replicas", [1])[0].profile == profile
    write_report(profile, tmp_path)
    assert read_report(tmp_path).host == SLOW
    assert profile_of_source(str(tmp_path), machine="Bow").host == SLOW


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gradient_accumulation", 5), ("device_iterations", 3), ("replicas", 2), ("execution", "sharded"),
        ("recomputation", "norm only"), ("available_memory_proportion", {"IPU1": 0.3}), ("half_partials", True),
        ("optimiser_off_chip", True), ("optimiser_sharded", True), ("prefetch_depth", 3), ("synthetic_data", True),
        ("output_mode", "all"),
    ],
)  # fmt: skip
def test_the_line_of_an_option_sets_what_the_model_changes(name: str, value: Any) -> None:
    """A program whose options were set by the line, against the program without it and the option set anew."""

    def with_line(line: str) -> Program:
        opts, model = trainable(2, 4), Chain(2)
        exec(line, {"opts": opts, "poptorch": poptorch, "torch": torch})
        optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return program_of_module(opts, model, (X, X), optimizer=optimiser, micro_batch=True)

    before = with_line("")
    after = with_line(OPTIONS[name].line(before, value))
    assert profile_program(after) == profile_program(with_options(before, **{name: value}))
    assert profile_program(after) != profile_program(before)
