"""Lesson 02's explorer: every setting gives a timeline or PopTorch's reason."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

import poptorch
from ipu_course import engine
from ipu_course.lessons.gradient_accumulation.explorer import (
    ACCUMULATION,
    ACCUMULATIONS,
    PIPELINED,
    accumulation_view,
    waiting_shares,
)
from ipu_course.models import SmallNetwork, WithLoss


@lru_cache(maxsize=1)
def two_stages() -> engine.ModelledModule:
    """A small network cut in two, as the workshop's is."""
    model = SmallNetwork(width=4)
    model.head = poptorch.BeginBlock(model.head, ipu_id=1)  # type: ignore[assignment]  # a Linear all the same
    training = WithLoss(model)
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    batch = (torch.zeros(8, 3, 32, 32), torch.zeros(8, dtype=torch.int64))
    return engine.modelled_module(training, batch, options, torch.optim.SGD(training.parameters(), lr=0.1))


@pytest.mark.parametrize("setting", list(ACCUMULATION.states()), ids=str)
def test_a_setting_has_a_timeline_or_a_reason(setting: dict[str, object]) -> None:
    view = ACCUMULATION.view(two_stages(), **setting)
    allowed = setting["strategy"] != PIPELINED or setting["accumulation"] >= 3  # type: ignore[operator]
    assert (view.figure is not None) == allowed
    assert allowed or "at least 2 x 2 - 1 = 3" in view.text
    if allowed:
        assert view.rows[0]["accumulation"] == setting["accumulation"]


def test_more_accumulation_comes_nearer_to_the_highest_rate() -> None:
    views = [accumulation_view(two_stages(), each, PIPELINED) for each in ACCUMULATIONS if each >= 3]
    shares = [float(str(view.rows[0]["percentage of the highest rate"]).rstrip("%")) for view in views]
    assert shares == sorted(shares)
    assert shares[-1] <= 100


def test_ipus_that_work_one_at_a_time_wait_for_each_other() -> None:
    waits = waiting_shares(two_stages().profile(gradient_accumulation=8, execution="sharded"))
    # While one works, the other waits, so the shares add up to at least one.
    assert sum(waits) >= 0.99
