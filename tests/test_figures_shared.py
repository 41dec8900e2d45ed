"""The figures that several lessons share: what they draw, and what they refuse."""

from __future__ import annotations

import math

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipu_course import figures
from ipu_course.ladder import ladder_figure


def axes_of(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


class TestCurves:
    def test_each_curve_is_a_line_through_its_values_with_gaps_where_there_are_none(self) -> None:
        drawn = figures.curves_figure([1, 2, 4], {"a": [1.0, None, 3.0]}, "x", "y", "T")
        (line,) = axes_of(drawn).lines
        assert list(line.get_xdata()) == [1, 2, 4]
        assert [None if math.isnan(value) else value for value in line.get_ydata()] == [1.0, None, 3.0]

    def test_published_points_get_one_key(self) -> None:
        points = {"day 03": (1, 2.0), "later": (2, 3.0)}
        legend = axes_of(figures.curves_figure([1, 2], {"a": [1, 2]}, "x", "y", "T", marked=points)).get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == ["a", "published"]

    def test_points_in_doubt_are_hollow_and_have_a_key(self) -> None:
        curves: dict[str, list[float | None]] = {"a": [1.0, 2.0], "b": [None, 3.0]}
        doubt = {"a": [False, True], "b": [True, False]}
        axes = axes_of(figures.curves_figure([1, 2], curves, "x", "y", "T", hollow=doubt, hollow_label="in doubt"))
        hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
        assert [list(line.get_xdata()) for line in hollow] == [[2], []]
        legend = axes.get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "in doubt"]

    def test_a_logarithmic_axis_is_marked_at_the_settings(self) -> None:
        axes = axes_of(figures.curves_figure([1, 4, 64], {"a": [1, 2, 3]}, "x", "y", "T", log_x=True))
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4", "64"]

    @pytest.mark.parametrize(
        ("curves", "problem"),
        [
            ({"a": [1.0]}, "the curve 'a' has 1 values for 2 places"),
            ({name: [1.0, 2.0] for name in "abcd"}, "4 lines asked for, but only 3"),
        ],
    )
    def test_what_cannot_be_drawn_is_refused(self, curves: dict[str, list[float | None]], problem: str) -> None:
        with pytest.raises(ValueError, match=problem):
            figures.curves_figure([1, 2], curves, "x", "y", "T")


class TestBars:
    def test_every_value_stands_at_its_bar_and_a_missing_one_is_a_word(self) -> None:
        drawn = figures.bars_figure(["a", "b"], {"one": [1.5, None], "two": [2.0, 3.0]}, "KiB", "T", form="{:.1f}")
        assert [text.get_text() for text in axes_of(drawn).texts] == ["1.5", "none", "2.0", "3.0"]
        assert [patch.get_width() for patch in axes_of(drawn).patches] == [1.5, 0.0, 2.0, 3.0]

    def test_a_ladder_says_what_does_not_fit(self) -> None:
        drawn = ladder_figure(["base", "half"], [None, 53.8], [None, 52.6])
        said = [text.get_text() for text in axes_of(drawn).texts]
        assert said == ["does not fit into memory", "53.8", "does not fit into memory", "52.6"]

    def test_on_a_logarithmic_axis_a_thousandth_is_still_a_bar(self) -> None:
        drawn = figures.bars_figure(["a", "b"], {"one": [0.001, 1.0]}, "share", "T", percent=True, log=True)
        axes = axes_of(drawn)
        start = axes.get_xlim()[0]
        assert axes.get_xscale() == "log"
        assert [patch.get_x() + patch.get_width() for patch in axes.patches] == pytest.approx([0.001, 1.0])
        assert 0 < start < 0.001
        assert [text.get_text() for text in axes.texts] == ["0.1%", "100%"]

    def test_groups_of_another_length_are_refused(self) -> None:
        with pytest.raises(ValueError, match="the group 'one' has 1 values for 2 labels"):
            figures.bars_figure(["a", "b"], {"one": [1.0]}, "KiB", "T")


class TestHistogram:
    def test_sizes_fall_into_powers_of_two_and_zeros_count_in_the_total_only(self) -> None:
        # Of four values one is zero, two lie in 2^-3..2^-2, one in 2^0..2^1.
        drawn = figures.histogram_figure({"g": [0.0, 0.2, -0.2, 1.5]}, "size", "T", log2=True)
        (steps,) = axes_of(drawn).patches
        shares = steps.get_data().values  # type: ignore[attr-defined]  # a StepPatch
        assert [share for share in shares if share] == [0.5, 0.25]

    def test_without_any_value_there_is_an_empty_figure(self) -> None:
        assert axes_of(figures.histogram_figure({"g": [0.0]}, "size", "T", log2=True)).get_title(loc="left") == "T"
