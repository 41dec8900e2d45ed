"""Gradient accumulation in fp32 and fp16, as a sum and as a running mean."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.compute.gradients import Accumulator, reduce_replicas

NUMBERS = st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=12)


def accumulated(values: list[float], **settings: bool) -> float:
    accumulator = Accumulator([True], **settings)
    for value in values:
        accumulator.add([torch.tensor([value])])
    return accumulator.totals[0].item()


@given(NUMBERS)
def test_a_half_sum_rounds_after_every_addition(values) -> None:
    expected = np.float16(values[0])
    for value in values[1:]:
        expected = np.float16(np.float32(expected) + np.float32(value))
    assert accumulated(values, half=True) == float(expected)


@given(NUMBERS)
def test_a_running_mean_is_the_mean(values) -> None:
    assert np.isclose(accumulated(values, running=True), np.mean(values), rtol=1e-4, atol=1e-4)


def test_half_accumulators_lose_small_addends_and_fp32_ones_do_not() -> None:
    # Half has 11 significant bits: 2048 + 1 rounds back to 2048.
    values = [2048.0] + [1.0] * 100
    assert accumulated(values, half=True) == 2048
    assert accumulated(values) == 2148


def test_a_running_mean_in_half_stays_in_range_where_a_sum_overflows() -> None:
    values = [40000.0] * 4
    assert accumulated(values, half=True) == float("inf")
    assert accumulated(values, half=True, running=True) == 40000


def test_a_gradient_that_is_not_fresh_is_copied_before_it_is_changed() -> None:
    shared = torch.ones(3)
    accumulator = Accumulator([False])
    accumulator.add([shared])
    accumulator.add([torch.ones(3)])
    assert torch.equal(shared, torch.ones(3))
    assert torch.equal(accumulator.totals[0], torch.full((3,), 2.0))


def test_replicas_are_summed_weight_by_weight() -> None:
    totals = [[torch.tensor([1.0]), torch.tensor([10.0])], [torch.tensor([2.0]), torch.tensor([20.0])]]
    assert [t.item() for t in reduce_replicas(totals)] == [3, 30]
