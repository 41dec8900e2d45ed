"""The figures of a profile draw its numbers, and their descriptions say them."""

from __future__ import annotations

import io
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipu_course.figures.profiles import FIGURES
from ipu_course.figures.style import WIDTH_INCHES
from ipu_model.predict import profile_program
from ipu_model.predict.profile import Profile, Span
from ipu_model.report.breakdown import PHASE_NAMES
from ipu_model.report.quantities import KIB
from published.convolutional import day03_program

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[1] / "ipu_model" / "tests" / "engine"))
    support: Any = import_module("report_support")
inference_profile, pipeline_profile, wide_profile = (
    getattr(support, f"{name}_profile") for name in ("inference", "pipeline", "wide")
)


def axes_of(kind: str, profile: Profile) -> Axes:
    (axes,) = FIGURES[kind][0](profile).axes
    return axes


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def rows(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("kind", FIGURES)
def test_every_figure_is_a_picture_with_a_title_that_says_modelled_and_names_that_need_not_be_latin(kind: str) -> None:
    before = dict(matplotlib.rcParams)
    draw, _ = FIGURES[kind]
    for make in support.PROFILE_KINDS.values():
        figure = draw(make())
        assert "modelled" in figure.axes[0].get_title(loc="left")
        assert figure.get_figwidth() == WIDTH_INCHES
        figure.savefig(io.BytesIO(), format="svg")
    assert dict(matplotlib.rcParams) == before
    # Nor does a dollar begin a formula.
    figure = draw(replace(pipeline_profile(), name="$\\frac{ 模型 <b>"))
    assert "$\\frac{ ?? <b>" in figure.axes[0].get_title(loc="left")


DESCRIPTIONS = {
    "memory": "What the fullest tile of each IPU holds; the most is activations with up to 149,000 bytes, then "
    "optimiser state with up to 137,400 bytes, then temporaries with up to 112,000 bytes.",
    "host and device": "Host and device in one call: loading from 0 s to 92.20 ms, a call on the host from 92.20 ms "
    "to 168.4 ms, the device's work from 126.2 ms to 168.4 ms. The next call starts 168.4 ms after this one.",
    "cycles": "OnTileExecute takes 58.5 % on IPU 0, 46.7 % on IPU 1 of the cycles of one call. Of all else, DoExchange "
    "takes most.",
}


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_a_description_has_the_numbers_of_its_figure(kind: str) -> None:
    assert FIGURES[kind][1](pipeline_profile()) == DESCRIPTIONS[kind]


class TestTimeline:
    def test_there_is_a_row_for_each_ipu_and_a_key_for_each_kind_of_work(self) -> None:
        figure = FIGURES["timeline"][0](pipeline_profile(loader=3.0))
        (axes,) = figure.axes
        assert rows(axes) == ["IPU 0", "IPU 1"]
        used = ["forward", "recompute", "backward", "update", "stream in", "stream out", "copy", "wait"]
        assert legend(figure) == used
        # Eight micro-batches: both IPUs run them forward and backward, IPU 0 once more forward.
        for letter, ipus in (("F", 2), ("B", 2), ("R", 1)):
            assert [texts(axes).count(f"{letter}{number}") for number in range(1, 9)] == [ipus] * 8
        both = texts(axes_of("timeline", pipeline_profile(updates=2)))
        assert [both.count(f"B{number}") for number in range(1, 17)] == [2] * 16
        # Time begins with the device and ends with it.
        assert axes.get_xlabel() == "time since the device began (ms)"
        assert axes.get_xlim() == pytest.approx((0, 1000 * pipeline_profile().device_seconds_per_call))

    def test_bars_are_as_long_as_their_spans_and_without_any_it_says_so(self) -> None:
        spans = Span("IPU 0", "forward", 1.0, 2.0), Span("IPU 0", "update", 3.0, 0.5)
        drawn = axes_of("timeline", replace(inference_profile(), timeline=spans)).collections
        corners = [tuple(bars.get_paths()[0].get_extents().intervalx) for bars in drawn]
        assert corners == [pytest.approx((0.0, 2.0)), pytest.approx((2.0, 2.5))]
        assert texts(axes_of("timeline", replace(inference_profile(), timeline=()))) == ["nothing was scheduled"]

    def test_what_stands_for_several_carries_their_number_and_a_break(self) -> None:
        """Of 24 micro-batches, the 21 that both stages work on beside others are alike."""
        figure = FIGURES["timeline"][0](pipeline_profile(accumulation=24))
        (axes,) = figure.axes
        assert [texts(axes).count(words) for words in ("F ×21", "B ×21", "R ×21")] == [2, 2, 1]
        assert "×n: n of them drawn together; really they take turns" in legend(figure)
        assert len(axes.lines) > 0

    def test_host_and_device_have_rows_with_their_times_and_a_line_where_the_next_call_begins(self) -> None:
        axes = axes_of("host and device", pipeline_profile(loader=0.0922))
        assert rows(axes) == ["loader", "host", "device"]
        assert {"92.20 ms", "42.17 ms", "next call"} <= set(texts(axes))
        profile = pipeline_profile(overlaps=True)
        (line,) = axes_of("host and device", profile).lines
        assert list(line.get_xdata()) == pytest.approx([1000 * profile.call_seconds] * 2)


class TestMemory:
    def test_every_tile_of_both_ipus_is_drawn_below_the_limit(self) -> None:
        profile = pipeline_profile()
        axes = axes_of("memory per tile", profile)
        tops = [area.get_paths()[0].get_extents().y1 for area in axes.collections]
        assert tops == pytest.approx([memory.max_tile_bytes / KIB for memory in profile.memory])
        assert {"limit: 638,976 bytes (624 KiB)", "fullest: 548,900 bytes (tile 47)"} <= set(texts(axes))
        shown = [label.get_text() for label in axes.get_xticklabels()]
        assert shown == ["IPU 0, tiles 0 to 1471", "IPU 1, tiles 0 to 1471"]
        assert axes.get_ylabel() == "memory of a tile (KiB)"
        # What is above the limit looks different, and of many IPUs the fullest four are shown.
        too_large = axes_of("memory per tile", pipeline_profile(fits=False))
        assert [bool(area.get_hatch()) for area in too_large.collections].count(True) == 2
        labels = axes_of("memory per tile", wide_profile(16)).get_xticklabels()
        assert [label.get_text().split(",")[0] for label in labels] == ["IPU 1", "IPU 3", "IPU 5", "IPU 7"]

    def test_groups_of_categories_lie_on_top_of_each_other(self) -> None:
        """Real profiles know every tile by category; the uppermost area ends at the fullest tile."""
        profile = profile_program(day03_program())
        figure = FIGURES["memory per tile"][0](profile)
        tops = [area.get_paths()[0].get_extents().y1 for area in figure.axes[0].collections]
        groups = ["parameters", "code", "activations, gradients", "temporary data", "other"]
        assert len(tops) == 2 * len(groups)
        assert tops == sorted(tops[:5]) + sorted(tops[5:])
        assert [tops[4], tops[9]] == pytest.approx([memory.max_tile_bytes / KIB for memory in profile.memory])
        assert legend(figure) == groups

    def test_categories_have_a_bar_and_a_number_for_each_ipu_hatched_where_they_share_their_place(self) -> None:
        profile = pipeline_profile()
        axes = axes_of("memory", profile)
        assert rows(axes)[:2] == ["activations", "optimiser state"]
        held = [c for memory in profile.memory for c in memory.categories]
        assert sorted(bar.get_width() for bar in axes.patches) == sorted(c.bytes_on_fullest_tile for c in held)
        shared = [c.bytes_on_fullest_tile for c in held if not c.always_live]
        assert sorted(bar.get_width() for bar in axes.patches if bar.get_hatch()) == sorted(shared)
        assert {"149,000", "73,000"} <= set(texts(axes))


def test_the_bars_of_an_ipu_are_the_shares_of_its_phases_and_large_ones_carry_them() -> None:
    profile = pipeline_profile()
    axes = axes_of("cycles", profile)
    for ipu, cycles in enumerate(profile.cycles):
        bars = [bar for bar in axes.patches if ipu - 0.5 < bar.get_y() < ipu + 0.5]
        shares = [getattr(cycles, field) / cycles.total for field in PHASE_NAMES]
        assert [bar.get_width() for bar in bars] == pytest.approx(shares)
        assert f"{100 * shares[0]:.1f} %" in texts(axes)
