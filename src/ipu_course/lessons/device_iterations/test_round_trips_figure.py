"""Lesson 03's drawing of round trips, tested from the stretches that it draws and from its words."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_course.lessons.device_iterations.round_trips_figure import round_trip_stretches, round_trips


@given(st.sampled_from([1, 2, 4, 8]), st.floats(0, 10), st.floats(0, 10), st.floats(0.1, 10))
def test_only_the_fixed_work_of_the_calls_gets_less(iterations: int, load: float, call: float, device: float) -> None:
    stretches = round_trip_stretches(iterations, 8, load=load, call=call, device=device)
    assert stretches[-1].end == pytest.approx(8 * (load + device) + 8 / iterations * call)
    assert sum(each.kind == "works" for each in stretches) == 8
    assert sum(each.kind == "call" for each in stretches) == 8 // iterations


@given(st.sampled_from([1, 2, 4, 8]))
def test_host_and_device_take_turns(iterations: int) -> None:
    stretches = round_trip_stretches(iterations, 8, load=0.5, call=1.0, device=2.0)
    assert all(later.start == each.end for each, later in itertools.pairwise(stretches))


def test_both_stand_on_one_axis_and_the_words_give_the_ratio() -> None:
    drawing = round_trips((1, 4), load=0.0, call=3.0, device=1.0, unit="ms")
    assert len(drawing.figure.axes) == 1
    # 4 x (3 + 1) = 16 ms against 3 + 4 = 7 ms.
    assert "done after 16 ms" in drawing.description
    assert "done after 7 ms" in drawing.description
    assert "2.29 times as long" in drawing.description


def test_iterations_that_do_not_divide_the_updates_are_refused() -> None:
    with pytest.raises(ValueError, match="no whole number of calls with 3 device iterations"):
        round_trips((3,))
