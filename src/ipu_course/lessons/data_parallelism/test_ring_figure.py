"""Lesson 10's drawing of a ring all-reduce, tested from the steps that it draws and from its words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_course.lessons.data_parallelism.ring_figure import (
    ALL_GATHER,
    REDUCE_SCATTER,
    bytes_sent,
    ring_all_reduce,
    ring_start,
    ring_steps,
)


@given(st.integers(2, 12))
def test_first_each_replica_has_one_complete_sum_then_all_have_all(replicas: int) -> None:
    steps, every = ring_steps(replicas), frozenset(range(replicas))
    assert [step.phase for step in steps] == [REDUCE_SCATTER] * (replicas - 1) + [ALL_GATHER] * (replicas - 1)
    scattered = [[chunk for chunk, sum_ in enumerate(held) if sum_ == every] for held in steps[replicas - 2].holds]
    assert sorted(scattered) == [[chunk] for chunk in range(replicas)]
    assert all(sum_ == every for held in steps[-1].holds for sum_ in held)


@given(st.integers(2, 12))
def test_no_gradient_is_added_twice(replicas: int) -> None:
    before = ring_start(replicas)
    for step in ring_steps(replicas)[: replicas - 1]:
        for replica, chunk in enumerate(step.sends):
            assert not before[replica][chunk] & before[(replica + 1) % replicas][chunk]
        before = step.holds


@given(st.integers(2, 12), st.floats(1, 1e9))
def test_each_replica_sends_twice_its_gradients_less_two_parts(replicas: int, size: float) -> None:
    # Hardware reference, A5: each IPU sends and receives 2 (R - 1) / R x bytes.
    assert bytes_sent(ring_steps(replicas), replicas, size) == pytest.approx(2 * (replicas - 1) / replicas * size)


def test_each_step_has_a_panel_with_every_part_of_every_replica() -> None:
    drawn = [text.get_text() for axes in ring_all_reduce(4).figure.axes for text in axes.texts]
    numbers = [text for text in drawn if text.isdigit()]
    assert len(numbers) == 7 * 4 * 4
    assert numbers[-16:] == ["4"] * 16


def test_the_words_have_the_bytes() -> None:
    assert "1.5 times the size" in ring_all_reduce(4).description


@pytest.mark.parametrize("replicas", [1, 7])
def test_rings_that_cannot_be_drawn_are_refused(replicas: int) -> None:
    with pytest.raises(ValueError, match=r"at (least|most)"):
        ring_all_reduce(replicas)
