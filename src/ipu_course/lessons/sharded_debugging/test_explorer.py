"""Lesson 07's explorer and its overflow: what a trained network answers for brighter and brighter scanners."""

from __future__ import annotations

import os

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor, nn

import poptorch
from ipu_course.datasets import mnist
from ipu_course.lessons.sharded_debugging.exercises import FIRST_BITS
from ipu_course.lessons.sharded_debugging.explorer import BITS, SCANNER, scanner_view
from ipu_course.lessons.sharded_debugging.network import BLOCKS, DigitNetwork, UnitScale
from ipu_course.lessons.sharded_debugging.safe_scale import features, scale_hint
from ipu_course.lessons.sharded_debugging.scanners import OVERFLOW_SETTING, answers, scanned, show_cure


class SafeUnitScale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return UnitScale()(x.float()).to(x.dtype)


@pytest.fixture(scope="module")
def network() -> DigitNetwork:
    """The network as the lesson trains it: 80 updates of 4 x 20 images."""
    torch.manual_seed(1)
    model = DigitNetwork(scale=UnitScale())
    options = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution(*BLOCKS))
    options.Training.gradientAccumulation(4)
    training = poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=0.003))
    digits = mnist(train=True)
    pixels, labels = digits.pixels[:6400].float().unsqueeze(1), digits.labels[:6400]
    for images, wanted in zip(pixels.split(80), labels.split(80)):
        training(images, wanted)
    training.detachFromDevice()
    return model


@pytest.fixture(scope="module")
def tests() -> tuple[Tensor, Tensor]:
    digits = mnist(train=False)
    return digits.pixels.float().unsqueeze(1), digits.labels


def test_the_exercise_asks_for_the_first_setting_that_hides_mistakes(
    network: DigitNetwork, tests: tuple[Tensor, Tensor]
) -> None:
    images, labels = tests
    plain = answers(network, images, labels, torch.float32)
    assert plain.undetected == 0
    assert plain.reviewed == pytest.approx(1 / 8, abs=0.03)
    found = {bits: answers(network, scanned(images, bits), labels, torch.half) for bits in BITS}
    hidden = [bits for bits, each in found.items() if each.reviewed < plain.reviewed / 2]
    assert min(hidden) == FIRST_BITS.value
    assert all(each.right > 0.95 for each in found.values())
    assert found[15].undetected > 0.5
    assert FIRST_BITS.hint(min(hidden)) is None
    # The hint for 9 bits says that the GPU's answers are already wrong there.
    assert answers(network, scanned(images, 9), labels, torch.half, infinity=True).right < 0.5
    assert found[8].reviewed == pytest.approx(plain.reviewed, abs=0.01)


@pytest.mark.parametrize("setting", list(SCANNER.states())[::3])
def test_every_setting_has_a_figure_and_three_rows(
    setting: dict[str, int], network: DigitNetwork, tests: tuple[Tensor, Tensor]
) -> None:
    view = scanner_view(network, *tests, **setting)
    assert view.figure is not None
    assert [row["number format"] for row in view.rows] == ["fp32", "fp16, IPU", "fp16, as on a GPU"]
    assert f"A scanner with {setting['bits']} bits." in view.description
    assert not plt.get_fignums()


def test_the_takeaway_follows_the_answers(network: DigitNetwork, tests: tuple[Tensor, Tensor]) -> None:
    assert "still at least half" in scanner_view(network, *tests, bits=8).takeaway
    assert "no longer knows" in scanner_view(network, *tests, bits=12).takeaway


def test_a_gpu_s_overflow_ends_with_the_program(network: DigitNetwork, tests: tuple[Tensor, Tensor]) -> None:
    before = os.environ.get(OVERFLOW_SETTING)
    answers(network, tests[0][:8], tests[1][:8], torch.half, infinity=True)
    assert os.environ.get(OVERFLOW_SETTING) == before


def test_the_cure_is_shown_only_where_there_is_one(
    network: DigitNetwork, tests: tuple[Tensor, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    show_cure(network, SafeUnitScale, *tests)
    assert capsys.readouterr().out.count("review rate as in fp32") == 2
    show_cure(network, UnitScale, *tests)
    assert "12 bits: review rate less than half of fp32's" in capsys.readouterr().out

    class Starter(nn.Module): ...

    show_cure(network, Starter, *tests)
    assert "Write SafeUnitScale first" in capsys.readouterr().out


def test_the_check_has_a_dark_a_bright_and_a_blank_image() -> None:
    dark, bright, blank = features().half()
    assert not torch.isinf(dark * dark).any()
    assert torch.isinf(bright * bright).any()
    assert not blank.any()
    assert scale_hint(SafeUnitScale) is None
    assert scale_hint(UnitScale) is not None
