"""Lesson 02's explorer: every setting gives a timeline or PopTorch's reason, with and without an IPU Model."""

from __future__ import annotations

from functools import lru_cache

import matplotlib.pyplot as plt
import pytest
import torch
from explorer_settings import some_of

import poptorch
from ipu_course import engine
from ipu_course.lessons.gradient_accumulation.explorer import (
    ACCUMULATIONS,
    COUNTED,
    PIPELINED,
    STRATEGIES,
    accumulation_view,
)
from ipu_course.models import SmallNetwork, WithLoss

SETTINGS = some_of(ACCUMULATIONS, STRATEGIES.values(), (False, True))


@lru_cache(maxsize=1)
def two_stages() -> engine.ModelledModule:
    """A small network cut in two, as the hands-on's is."""
    model = SmallNetwork(width=4)
    model.head = poptorch.BeginBlock(model.head, ipu_id=1)  # type: ignore[assignment]  # a Linear all the same
    training = WithLoss(model)
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    batch = (torch.zeros(8, 3, 32, 32), torch.zeros(8, dtype=torch.int64))
    found = engine.modelled_module(training, batch, options, torch.optim.SGD(training.parameters(), lr=0.1))
    assert found is not None
    return found


@pytest.mark.parametrize(("accumulation", "strategy", "with_loader"), SETTINGS)
def test_a_setting_has_a_timeline_or_a_reason(accumulation: int, strategy: str, with_loader: bool) -> None:
    view = accumulation_view(two_stages(), accumulation, strategy, with_loader)
    allowed = strategy != PIPELINED or accumulation >= 3
    assert (view.figure is not None) == allowed
    assert allowed or "at least 2 x 2 - 1 = 3" in view.text
    if allowed:
        assert view.rows[0]["images in an update"] == f"{64 * accumulation:,}"


@pytest.mark.parametrize(("accumulation", "strategy", "with_loader"), SETTINGS)
def test_without_an_ipu_model_the_schedule_is_counted(accumulation: int, strategy: str, with_loader: bool) -> None:
    view = accumulation_view(None, accumulation, strategy, with_loader)
    allowed = strategy != PIPELINED or accumulation >= 3
    assert (view.figure is not None) == allowed
    assert (view.text == COUNTED) == allowed
    for row in view.rows:
        assert row["images in an update"] == f"{64 * accumulation:,}"
        assert "epoch" not in row
    assert "modelled" not in view.description


def test_the_loader_makes_the_epoch_longer_and_changes_nothing_on_the_ipus() -> None:
    alone, loaded = (accumulation_view(two_stages(), 8, PIPELINED, loader).rows[0] for loader in (False, True))
    assert alone["images a second, IPUs alone"] == loaded["images a second, IPUs alone"]
    assert float(str(alone["epoch"]).split()[0]) < float(str(loaded["epoch"]).split()[0])


def test_figures_are_of_nobody_s_pyplot() -> None:
    accumulation_view(two_stages(), 8, PIPELINED, False)
    assert not plt.get_fignums()
