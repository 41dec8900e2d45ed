"""Lesson 11's explorer: every setting has a picture whose parts are the fullest tile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import poptorch
from ipu_course import engine
from ipu_course.lessons.where_memory_goes.exercises import small_network
from ipu_course.lessons.where_memory_goes.explorer import MEMORY, PARTS, memory_view
from ipu_course.models import WithLoss
from ipu_course.not_modelled import NOT_MODELLED


def profiled(micro_batch: int, optimiser: str, half: bool) -> engine.Profile:
    """Model the training of a small network, as the lesson's function of that name does for the learner's."""
    network, images = WithLoss(small_network()), torch.zeros(micro_batch, 3, 16, 16)
    if half:
        network, images = network.half(), images.half()
    parameters = list(network.parameters())
    optimisers = {
        "SGD": poptorch.optim.SGD(parameters, lr=0.1),
        "SGD with momentum": poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "AdamW": poptorch.optim.AdamW(parameters),
    }
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    labels = torch.zeros(micro_batch, dtype=torch.int64)
    return engine.profile_module(network, (images, labels), options, optimisers[optimiser])


@pytest.mark.parametrize("setting", list(MEMORY.states())[::4], ids=str)
def test_a_setting_has_a_picture_and_parts_that_fill_the_tile(setting: dict[str, Any]) -> None:
    view = MEMORY.view(profiled, **setting)
    memory = profiled(**setting).memory[0]
    assert view.figure is not None
    assert view.rows[0]["fullest tile"] == f"{memory.max_tile_bytes / 1024:.1f} KiB"
    named = {category for _, _, members in PARTS for category in members}
    assert set(memory.bytes_by_category) <= named, "every category belongs to a part"


def test_the_optimiser_moves_the_floor_and_the_micro_batch_the_hill() -> None:
    def kib(column: str, micro_batch: int, optimiser: str) -> float:
        return float(str(memory_view(profiled, micro_batch, optimiser, False).rows[0][column]).split()[0])

    assert kib("always live (floor)", 8, "AdamW") > kib("always live (floor)", 8, "SGD")
    assert kib("not always live (hill)", 8, "AdamW") == kib("not always live (hill)", 8, "SGD")
    assert kib("not always live (hill)", 64, "SGD") > kib("not always live (hill)", 1, "SGD")


def test_without_a_model_it_says_so() -> None:
    view = memory_view(lambda **setting: NOT_MODELLED, 16, "AdamW", False)
    assert view.figure is None
    assert view.text == engine.NOT_HERE
