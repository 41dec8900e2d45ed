"""Lesson 10's trial of a learner's program: what is said of how its instances end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import poptorch
from ipu_course.instances.function_file import read_function, write_function
from ipu_course.lessons.data_parallelism import instance_trial
from ipu_course.lessons.data_parallelism.instance_trial import end_hint, instance_hint, plain_pytorch
from ipu_course.lessons.data_parallelism.poprun_run import NO_POPRUN, PoprunEnd
from ipu_course.models import Digits

FIRST = torch.nn.utils.parameters_to_vector(Digits().parameters()).detach()


def end(popdist: object = True, calls: int = 16, rows: int = 32, agree: object = True, by: float = 0.0) -> PoprunEnd:
    """A run whose trained weights are ``by`` away from those of plain PyTorch."""
    lines = [f"popdist: {popdist}", f"calls: {calls}", f"rows: {rows}", f"agree: {agree}"]
    return PoprunEnd({0: lines, 1: lines}, [FIRST, plain_pytorch(FIRST) + by])


def test_the_run_of_a_right_program_has_no_hint() -> None:
    assert end_hint(end()) is None


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (end(popdist=False, rows=16, calls=32), "do not know poprun's replicas"),
        (end(rows=16, calls=32), "no accumulation of 2"),
        (end(calls=32), "loads all 1,024 digits"),
        (end(rows=8, calls=64), "64 calls with 8 rows"),
        (end(agree=False), "began with different ones"),
        (end(by=0.1), "not those of plain PyTorch"),
        (PoprunEnd({0: ["popdist: True", "error: TypeError: no loader"]}, None, "exit code 1"), "TypeError: no loader"),
        (PoprunEnd(problem=NO_POPRUN), NO_POPRUN),
    ],
)
def test_each_mistake_has_its_own_hint(ended: PoprunEnd, words: str) -> None:
    assert words in str(end_hint(ended))


def test_one_process_with_four_replicas_gives_the_weights_of_plain_pytorch() -> None:
    """PopTorch itself, without poprun: the digits in the order in which two instances take them."""
    network = Digits()
    options = poptorch.Options().showCompilationProgressBar(False)
    options.replicationFactor(4)
    options.Training.gradientAccumulation(2)
    model = poptorch.trainingModel(network, options, torch.optim.SGD(network.parameters(), lr=0.1))
    digits = instance_trial.mnist(train=True, images=1024)
    for first in range(0, 512, 32):
        rows = [*range(first, first + 32), *range(512 + first, 512 + first + 32)]
        model(digits.images[rows], digits.labels[rows])
    model.copyWeightsToHost()
    model.detachFromDevice()
    trained = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
    assert (trained - plain_pytorch(FIRST)).abs().max() < instance_trial.NEAR


def test_a_function_goes_through_a_file(tmp_path: Path) -> None:
    def double(number: int) -> Any:
        return torch.tensor(2 * number)

    write_function(double, tmp_path / "double")
    assert read_function(tmp_path / "double")(21).item() == 42


@pytest.mark.parametrize("answer", [7, "instance", len, torch.nn.Linear])
def test_what_is_no_function_of_the_learner_has_a_hint(answer: object) -> None:
    assert "is a function, written with def" in str(instance_hint(answer))


def test_names_of_a_function_around_it_are_refused() -> None:
    rate = 0.1

    def instance(network: object, data: object) -> float:
        return rate

    assert "'rate'" in str(instance_hint(instance))
