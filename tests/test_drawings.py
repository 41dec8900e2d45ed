"""The concept drawings: what they claim, tested from the data that they draw, and from the words that describe it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields

import pytest
from matplotlib.colors import to_rgb

from ipu_course import figures
from ipu_course.figures import hardware as hardware_module
from ipu_course.figures import looks
from ipu_course.figures.board import Drawing
from ipu_course.figures.hardware import WITHOUT_IPU_MODEL, Hardware, hardware
from ipu_course.figures.roofline import attainable
from ipu_course.figures.shown import picture
from ipu_course.lessons.data_parallelism.ring_figure import ring_all_reduce
from ipu_course.lessons.device_iterations.round_trips_figure import round_trips
from ipu_course.lessons.start_here.bulk_synchronous_figure import bulk_synchronous
from ipu_course.lessons.start_here.hardware_drawings import chip, ipu_system

POINTS = [figures.RooflinePoint("a", 10.0, 50e9), figures.RooflinePoint("b", 1000.0)]
ROOFS = [figures.Roof("streaming memory", 20e9)]
EVERY: dict[str, Callable[[], Drawing]] = {
    "tile": figures.tile,
    "chip": chip,
    "IPU system": ipu_system,
    "bulk-synchronous steps": bulk_synchronous,
    "round trips": round_trips,
    "streaming state": figures.streaming_state,
    "ring": ring_all_reduce,
    "roofline": lambda: figures.roofline(POINTS, peak=1e12, roofs=ROOFS),
}


def said(drawing: Drawing) -> list[str]:
    """Return all texts within the axes of a drawing."""
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
        assert "one IPU: 1,472 tiles" in said(chip())
        # 1472 tiles x 4 bytes x 1.33 GHz = 7.83 TB/s (hardware reference, A1).
        assert "exchange: 7.8 TB/s" in said(chip())
        assert sum(text.startswith("IPU ") and "MiB" in text for text in said(ipu_system())) == 4


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

    def test_what_a_point_reaches_alone_is_a_short_line_around_it(self) -> None:
        alone = figures.RooflinePoint("a", 10.0, 50e9, alone_per_second=80e9)
        drawing = figures.roofline([alone], peak=1e12, roofs=ROOFS)
        heights = [list(line.get_ydata()) for line in drawing.figure.axes[0].lines]
        assert [0.08, 0.08] in heights
        assert "computing alone 0.08" in drawing.description

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
