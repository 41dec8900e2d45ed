"""Lesson 06's two curves of utilisation: by time, and counted in steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ipu_course.lessons.pipelining_mnist.utilisation_figure import utilisation
from ipu_course.schedule import busy_by_steps, busy_by_time, pipelined


@given(st.integers(1, 6), st.integers(1, 20))
def test_the_share_of_the_steps_is_the_lower_one(stages: int, micro_batches: int) -> None:
    assert busy_by_steps(stages, micro_batches) == pipelined(stages, micro_batches).utilisation
    assert busy_by_steps(stages, micro_batches) <= busy_by_time(stages, micro_batches) <= 1


def test_both_curves_are_drawn_from_the_minimum_on() -> None:
    (axes,) = utilisation((2, 4), 32).figure.axes
    curves = [line for line in axes.lines if len(line.get_xdata()) > 2]
    for stages, pair in zip((2, 4), zip(curves[::2], curves[1::2])):
        for curve, formula in zip(pair, (busy_by_time, busy_by_steps)):
            counts = list(curve.get_xdata())
            assert counts == list(range(2 * stages - 1, 33))
            assert list(curve.get_ydata()) == [formula(stages, count) for count in counts]


def test_a_marked_point_has_both_percentages() -> None:
    drawing = utilisation((4,), marked=((4, 10),))
    (axes,) = drawing.figure.axes
    assert {"76.9%", "62.5%"} <= {text.get_text() for text in axes.texts}
    assert "76.9% of the time and 62.5% of the steps" in drawing.description
