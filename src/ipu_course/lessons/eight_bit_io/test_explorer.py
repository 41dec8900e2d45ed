"""Lesson 04's explorer: every setting has a picture or a reason, and its exercise has the answers that it shows."""

from __future__ import annotations

import itertools

import pytest
import torch

import poptorch
from ipu_course import engine, ladder
from ipu_course.engine import ModelledModule
from ipu_course.lessons.eight_bit_io.exercises import gain_percent, host_speed_hint, slowest_free_host
from ipu_course.lessons.eight_bit_io.explorer import HOST_MS, IO, LIMITED_BY_LOADING, io_view
from ipu_course.lessons.eight_bit_io.image_types import TYPES
from ipu_course.models import ClassifierWithLoss

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
    module = ClassifierWithLoss(TwoStages())
    options = poptorch.Options()
    options.deviceIterations(4)
    options.Training.gradientAccumulation(8)
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    return engine.modelled_module(module, ladder.micro_batch(dtype), options, optimizer)


@pytest.fixture(scope="module")
def programs() -> dict[str, ModelledModule]:
    return {name: captured(dtype) for name, dtype in TYPES.items()}


@pytest.mark.parametrize("images", TYPES)
@pytest.mark.parametrize("loading", [False, True])
@pytest.mark.parametrize(("accumulation", "iterations"), BATCHES)
def test_every_extreme_has_a_picture_or_a_reason(
    programs: dict[str, ModelledModule], images: str, loading: bool, accumulation: int, iterations: int
) -> None:
    for host_ms in (HOST_MS[0], HOST_MS[-1]):
        view = io_view(programs, images, host_ms, loading, accumulation, iterations)
        allowed = accumulation >= 3  # 2 x 2 stages - 1
        assert (view.figure is not None) == allowed
        assert allowed or view.text.startswith("PopTorch refuses this: ")
        assert len(view.rows) == allowed


def test_the_stream_follows_the_bytes(programs: dict[str, ModelledModule]) -> None:
    rows = [io_view(programs, images, 0.0, False, 8, 4).rows[0] for images in TYPES]
    streams = [float(str(row["stream"]).split()[0]) for row in rows]
    # Labels travel as well, so it is a little more than half each time.
    assert [before / after for before, after in zip(streams, streams[1:])] == pytest.approx([2, 2], rel=0.05)


def test_the_controls_are_the_view_s_arguments(programs: dict[str, ModelledModule]) -> None:
    view = io_view(programs, **{name: control.default for name, control in IO.controls.items()})
    assert view.figure is not None
    assert "2,048" in str(view.rows)


def test_the_exercise_s_answers_are_those_of_the_table(programs: dict[str, ModelledModule]) -> None:
    rows = [io_view(programs, images, 0.0, False, 8, 4).rows[0] for images in ("uint8", "fp16")]
    faster, slower = (float(str(row["images per second"]).replace(",", "")) for row in rows)
    read = 100 * (faster / slower - 1)
    assert read == pytest.approx(gain_percent(programs, 0.0, 0.0), abs=0.1)
    free = slowest_free_host(programs)
    bottlenecks = {ms: io_view(programs, "uint8", ms, False, 8, 4).rows[0]["bottleneck"] for ms in HOST_MS}
    assert all((bottleneck == LIMITED_BY_LOADING) == (ms > free) for ms, bottleneck in bottlenecks.items())
    assert host_speed_hint(read, free, using=programs) is None
