"""Lesson 04's explorer: every setting of its knobs gives a picture or a reason, and says what the profile says."""

from __future__ import annotations

import itertools

import pytest
import torch

import poptorch
from ipu_course import engine, ladder, models
from ipu_course.engine import ModelledModule
from ipu_course.lessons.eight_bit_io.explorer import CONTROLS, HOST_MS, IoView

BATCHES = list(itertools.product((2, 3, 32), (1, 16)))


class TwoStages(torch.nn.Module):
    """A small classifier on two IPUs, so that a pipeline's rules hold."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3 * 64 * 64, 8)
        self.second = poptorch.BeginBlock(torch.nn.Linear(8, 10), ipu_id=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(images.flatten(1).float()))  # type: ignore[no-any-return]


def captured(dtype: torch.dtype) -> ModelledModule:
    module = models.ClassifierWithLoss(TwoStages())
    options = poptorch.Options()
    options.deviceIterations(4)
    options.Training.gradientAccumulation(8)
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    program = engine.modelled_module(module, ladder.micro_batch(dtype), options, optimizer)
    assert program is not None
    return program


@pytest.fixture(scope="module")
def explorer() -> IoView:
    types = {"fp32": torch.float32, "fp16": torch.float16, "uint8": torch.uint8}
    return IoView({name: captured(dtype) for name, dtype in types.items()})


@pytest.mark.parametrize("images", ["fp32", "fp16", "uint8"])
@pytest.mark.parametrize("loading", [False, True])
@pytest.mark.parametrize(("accumulation", "iterations"), BATCHES)
def test_every_extreme_has_a_picture_or_a_reason(
    explorer: IoView, images: str, loading: bool, accumulation: int, iterations: int
) -> None:
    for host_ms in (HOST_MS[0], HOST_MS[-1]):
        view = explorer.view(images, host_ms, loading, accumulation, iterations)
        allowed = accumulation >= 3  # 2 x 2 stages - 1
        assert (view.figure is not None) == allowed
        assert allowed or view.text.startswith("PopTorch refuses this: ")
        assert len(view.rows) == allowed


def test_the_stream_follows_the_bytes(explorer: IoView) -> None:
    rows = [explorer.view(images, 0.0, False, 8, 4).rows[0] for images in ("fp32", "fp16", "uint8")]
    streams = [float(str(row["stream"]).split()[0]) for row in rows]
    # Labels travel as well, so it is a little more than half each time.
    assert [before / after for before, after in zip(streams, streams[1:])] == pytest.approx([2, 2], rel=0.05)


def test_without_a_model_it_says_so() -> None:
    nothing = IoView({"fp32": None, "fp16": None, "uint8": None})
    assert engine.NONE_HERE in nothing.view("uint8", 0.18, False, 8, 4).text


def test_the_knobs_are_the_view_s_arguments(explorer: IoView) -> None:
    view = explorer.view(**{name: control.default for name, control in CONTROLS.items()})
    assert view.figure is not None
    assert "2,048" in str(view.rows)
