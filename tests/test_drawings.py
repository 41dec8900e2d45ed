"""The concept drawings: what they claim, tested from the data that they draw, and from the words that describe it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from ipu_course import figures
from ipu_course.figures import hardware as hardware_module
from ipu_course.figures import looks
from ipu_course.figures.drawing import Drawing
from ipu_course.figures.drawings.bulk_synchronous import ONE_SLOW_TILE, bulk_steps
from ipu_course.figures.drawings.chip import tile_places
from ipu_course.figures.drawings.ring_all_reduce import (
    ALL_GATHER,
    REDUCE_SCATTER,
    bytes_sent,
    ring_start,
    ring_steps,
)
from ipu_course.figures.drawings.roofline import attainable
from ipu_course.figures.drawings.round_trips import round_trip_stretches
from ipu_course.figures.hardware import WITHOUT_IPU_MODEL, Hardware, hardware
from ipu_course.figures.shown import picture

POINTS = [figures.RooflinePoint("a", 10.0, 50e9), figures.RooflinePoint("b", 1000.0)]
ROOFS = [figures.Roof("streaming memory", 20e9)]
EVERY: dict[str, Callable[[], Drawing]] = {
    "tile": figures.tile,
    "chip": figures.chip,
    "IPU system": figures.ipu_system,
    "bulk-synchronous steps": figures.bulk_synchronous,
    "round trips": figures.round_trips,
    "streaming state": figures.streaming_state,
    "ring": figures.ring_all_reduce,
    "roofline": lambda: figures.roofline(POINTS, peak=1e12, roofs=ROOFS),
}


def said(drawing: Drawing) -> list[str]:
    """All texts within the axes of a drawing."""
    return [text.get_text() for axes in drawing.figure.axes for text in axes.texts]


@pytest.mark.parametrize("name", EVERY)
def test_every_drawing_has_a_description_in_whole_sentences(name: str) -> None:
    words = EVERY[name]().description
    assert len(words) > 100
    assert words[0].isupper()
    assert words.endswith(".")
    assert "1 steps" not in words


@pytest.mark.parametrize("name", EVERY)
def test_no_text_leaves_the_picture(name: str) -> None:
    figure = EVERY[name]().figure
    figure.canvas.draw()
    width, height = figure.get_size_inches() * figure.dpi
    for axes in figure.axes:
        for text in axes.texts:
            box = text.get_window_extent()
            assert box.x0 >= 0, text.get_text()
            assert box.x1 <= width + 1, text.get_text()
            assert box.y0 >= 0, text.get_text()
            assert box.y1 <= height + 1, text.get_text()


def test_a_drawing_is_shown_at_its_own_width() -> None:
    drawing = figures.tile()
    data, metadata = picture(drawing.figure, drawing.description)
    assert metadata["image/png"] == {"alt": drawing.description, "width": 760}
    assert data["text/plain"] == drawing.description


class TestHardware:
    def test_the_table_for_machines_without_an_ipu_model_has_its_numbers(self) -> None:
        from ipu_model.predict.hardware import system_named

        assert hardware() == WITHOUT_IPU_MODEL
        system = system_named(hardware_module.SYSTEM)
        assert (hardware().tiles, hardware().tile_bytes) == (system.chip.tiles, system.chip.tile_bytes)

    def test_no_two_numbers_of_the_table_were_mixed_up(self) -> None:
        # The chip: 897 MiB and 8,832 threads (hardware reference, A1).
        assert WITHOUT_IPU_MODEL.chip_bytes // 2**20 == 897
        assert WITHOUT_IPU_MODEL.chip_threads == 8832
        assert all(getattr(WITHOUT_IPU_MODEL, each.name) > 0 for each in fields(Hardware))

    def test_the_pictures_say_what_the_table_says(self) -> None:
        assert "memory\n624 KiB" in said(figures.tile())
        assert "one IPU: 1,472 tiles" in said(figures.chip())
        # 1472 tiles x 4 bytes x 1.33 GHz = 7.83 TB/s (hardware reference, A1).
        assert "exchange: 7.8 TB/s" in said(figures.chip())
        assert sum(text.startswith("IPU ") and "MiB" in text for text in said(figures.ipu_system())) == 4

    def test_each_tile_is_drawn_once_and_none_lies_on_another(self) -> None:
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
        drawing = figures.bulk_synchronous(ONE_SLOW_TILE)
        (axes,) = drawing.figure.axes
        assert len(axes.get_yticks()) == len(ONE_SLOW_TILE)
        (text,) = (text for text in axes.texts if text.get_text() == "all wait for this one")
        assert text.get_position()[1] == ONE_SLOW_TILE.index(max(ONE_SLOW_TILE))

    def test_even_work_has_no_tile_that_all_wait_for(self) -> None:
        assert "all wait for this one" not in said(figures.bulk_synchronous([100.0, 110.0, 105.0]))

    @pytest.mark.parametrize("steps", [([1.0], [1.0, 2.0]), ([],)])
    def test_steps_of_different_tiles_are_refused(self, steps: tuple[list[float], ...]) -> None:
        with pytest.raises(ValueError, match="the same tiles"):
            figures.bulk_synchronous(*steps)


class TestRoundTrips:
    @given(st.sampled_from([1, 2, 4, 8]), st.floats(0, 10), st.floats(0, 10), st.floats(0.1, 10))
    def test_only_the_fixed_work_of_the_calls_gets_less(
        self, iterations: int, load: float, call: float, device: float
    ) -> None:
        stretches = round_trip_stretches(iterations, 8, load=load, call=call, device=device)
        assert stretches[-1].end == pytest.approx(8 * (load + device) + 8 / iterations * call)
        assert sum(each.kind == "works" for each in stretches) == 8
        assert sum(each.kind == "call" for each in stretches) == 8 // iterations

    @given(st.sampled_from([1, 2, 4, 8]))
    def test_host_and_device_take_turns(self, iterations: int) -> None:
        stretches = round_trip_stretches(iterations, 8, load=0.5, call=1.0, device=2.0)
        assert all(later.start == each.end for each, later in itertools.pairwise(stretches))

    def test_both_stand_on_one_axis_and_the_words_give_the_ratio(self) -> None:
        drawing = figures.round_trips((1, 4), load=0.0, call=3.0, device=1.0, unit="ms")
        assert len(drawing.figure.axes) == 1
        # 4 x (3 + 1) = 16 ms against 3 + 4 = 7 ms.
        assert "done after 16 ms" in drawing.description
        assert "done after 7 ms" in drawing.description
        assert "2.29 times as long" in drawing.description

    def test_iterations_that_do_not_divide_the_updates_are_refused(self) -> None:
        with pytest.raises(ValueError, match="no whole number of calls with 3 device iterations"):
            figures.round_trips((3,))


class TestRing:
    @given(st.integers(2, 12))
    def test_first_each_replica_has_one_complete_sum_then_all_have_all(self, replicas: int) -> None:
        steps, every = ring_steps(replicas), frozenset(range(replicas))
        assert [step.phase for step in steps] == [REDUCE_SCATTER] * (replicas - 1) + [ALL_GATHER] * (replicas - 1)
        scattered = [[chunk for chunk, sum_ in enumerate(held) if sum_ == every] for held in steps[replicas - 2].holds]
        assert sorted(scattered) == [[chunk] for chunk in range(replicas)]
        assert all(sum_ == every for held in steps[-1].holds for sum_ in held)

    @given(st.integers(2, 12))
    def test_no_gradient_is_added_twice(self, replicas: int) -> None:
        before = ring_start(replicas)
        for step in ring_steps(replicas)[: replicas - 1]:
            for replica, chunk in enumerate(step.sends):
                assert not before[replica][chunk] & before[(replica + 1) % replicas][chunk]
            before = step.holds

    @given(st.integers(2, 12), st.floats(1, 1e9))
    def test_each_replica_sends_twice_its_gradients_less_two_parts(self, replicas: int, size: float) -> None:
        # Hardware reference, A5: each IPU sends and receives 2 (R - 1) / R x bytes.
        assert bytes_sent(ring_steps(replicas), replicas, size) == pytest.approx(2 * (replicas - 1) / replicas * size)

    def test_each_step_has_a_panel_with_every_part_of_every_replica(self) -> None:
        numbers = [text for text in said(figures.ring_all_reduce(4)) if text.isdigit()]
        assert len(numbers) == 7 * 4 * 4
        assert numbers[-16:] == ["4"] * 16

    def test_the_words_have_the_bytes(self) -> None:
        assert "1.5 times the size" in figures.ring_all_reduce(4).description

    @pytest.mark.parametrize("replicas", [1, 7])
    def test_rings_that_cannot_be_drawn_are_refused(self, replicas: int) -> None:
        with pytest.raises(ValueError, match=r"at (least|most)"):
            figures.ring_all_reduce(replicas)


class TestRoofline:
    def test_the_slope_ends_at_the_peak(self) -> None:
        # 20 GB/s x 10 FLOP per byte = 200 GFLOP/s; from 50 FLOP per byte on, the peak of 1 TFLOP/s.
        assert attainable(10.0, ROOFS[0], 1e12) == 200e9
        assert attainable(50.0, ROOFS[0], 1e12) == attainable(5000.0, ROOFS[0], 1e12) == 1e12

    def test_each_point_has_its_name_and_stands_where_it_reaches(self) -> None:
        drawing = figures.roofline(POINTS, peak=1e12, roofs=ROOFS)
        (axes,) = drawing.figure.axes
        marks = [(*line.get_xdata(), *line.get_ydata()) for line in axes.lines if line.get_marker() == "o"]
        assert marks == [(10.0, 0.05), (1000.0, 1.0)]
        assert {"a", "b"} <= set(said(drawing))
        assert "a has 10 FLOP per byte, at most 0.2 TFLOP/s and reaches 0.05" in drawing.description
        assert "b has 1,000 FLOP per byte, at most 1 TFLOP/s." in drawing.description

    def test_a_roofline_of_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one point"):
            figures.roofline([], peak=1e12, roofs=ROOFS)


def test_what_happens_over_time_never_looks_alike() -> None:
    over_time = ("FORWARD", "RECOMPUTE", "BACKWARD", "UPDATE", "WAIT", "SYNC", "EXCHANGE", "LINK", "LOAD", "CALL")
    every = [(getattr(looks, name).face, getattr(looks, name).hatch) for name in over_time]
    assert len(set(every)) == len(over_time)


def test_plain_areas_differ_in_grey() -> None:
    plain = [look for look in (looks.FORWARD, looks.UPDATE, looks.WAIT, looks.LINK) if not look.hatch]
    greys = sorted(sum(w * c for w, c in zip((0.299, 0.587, 0.114), to_rgb(look.face))) for look in plain)
    assert all(lighter - darker > 0.05 for darker, lighter in itertools.pairwise(greys))
