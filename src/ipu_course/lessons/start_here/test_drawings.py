"""Lesson 00's drawings: every tile of the chip, and bulk-synchronous steps from the cycles of their tiles."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_course.figures import Drawing
from ipu_course.figures.hardware import hardware
from ipu_course.lessons.start_here.bulk_synchronous_figure import ONE_SLOW_TILE, bulk_steps, bulk_synchronous
from ipu_course.lessons.start_here.hardware_drawings import tile_places


def said(drawing: Drawing) -> list[str]:
    """Return all texts within the axes of a drawing."""
    return [text.get_text() for axes in drawing.figure.axes for text in axes.texts]


def test_each_tile_is_drawn_once_and_none_lies_on_another() -> None:
    above, below = tile_places(hardware())
    assert len(above) == len(below) == 1472 / 2
    corners = {(round(each.x, 6), round(each.y, 6)) for each in (*above, *below)}
    assert len(corners) == 1472
    assert min(each.y for each in above) > max(each.y + each.height for each in below)


class TestBulkSynchronous:
    @given(st.lists(st.lists(st.floats(1, 1e6), min_size=3, max_size=3), min_size=1, max_size=4), st.floats(0, 1e4))
    def test_the_slowest_tile_sets_the_length_of_a_step(self, compute: list[list[float]], exchange: float) -> None:
        steps = bulk_steps(compute, 126.0, exchange)
        for step, tiles in zip(steps, compute):
            assert step.end - step.start == pytest.approx(max(tiles) + 126.0 + exchange)
            assert tiles[step.slowest] == max(tiles)
        assert steps[0].start == 0
        assert all(later.start == step.end for step, later in itertools.pairwise(steps))

    def test_each_tile_has_a_row_and_the_slow_one_says_so(self) -> None:
        drawing = bulk_synchronous(ONE_SLOW_TILE)
        (axes,) = drawing.figure.axes
        assert len(axes.get_yticks()) == len(ONE_SLOW_TILE)
        (text,) = (text for text in axes.texts if text.get_text() == "all wait for this one")
        assert text.get_position()[1] == ONE_SLOW_TILE.index(max(ONE_SLOW_TILE))

    def test_even_work_has_no_tile_that_all_wait_for(self) -> None:
        assert "all wait for this one" not in said(bulk_synchronous([100.0, 110.0, 105.0]))

    @pytest.mark.parametrize("steps", [([1.0], [1.0, 2.0]), ([],)])
    def test_steps_of_different_tiles_are_refused(self, steps: tuple[list[float], ...]) -> None:
        with pytest.raises(ValueError, match="the same tiles"):
            bulk_synchronous(*steps)
