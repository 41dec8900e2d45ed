"""The figures: that they draw the numbers of the profile, name their axes, and can be told apart without colour."""

from __future__ import annotations

import ast
import io
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from report_support import PROFILE_KINDS, inference_profile, pipeline_profile, wide_profile

import ipu_model
from ipu_model.errors import Error
from ipu_model.predict import profile_program
from ipu_model.predict.profile import SPAN_KINDS, Profile, Span
from ipu_model.report import figures, looks
from ipu_model.report.breakdown import PHASE_NAMES
from ipu_model.report.figures import style
from ipu_model.report.figures.canvas import plate
from ipu_model.report.quantities import KIB
from published.convolutional import day03_program

OF_PROFILES = (
    figures.timeline_figure, figures.host_device_figure, figures.memory_per_tile_figure, figures.memory_category_figure,
    figures.liveness_figure, figures.cycles_figure,
)  # fmt: skip


def axes_of(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def rows(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def with_spans(*spans: Span) -> Profile:
    return replace(inference_profile(), timeline=spans)


def luminance(colour: str) -> float:
    """Return how light a colour is on grey paper (Rec. 709)."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


class TestEveryFigure:
    @pytest.mark.parametrize("draw", OF_PROFILES, ids=lambda draw: draw.__name__)
    @pytest.mark.parametrize("kind", PROFILE_KINDS)
    def test_it_becomes_a_picture_with_a_title_that_says_modelled(self, draw, kind: str) -> None:
        figure = draw(PROFILE_KINDS[kind]())
        assert "modelled" in figure.axes[0].get_title(loc="left")
        height, width, _ = imread(io.BytesIO(figures.png(figure))).shape
        assert width == pytest.approx(style.WIDTH_INCHES * style.DOTS_PER_INCH, rel=0.05)
        assert height > 150

    @pytest.mark.parametrize("draw", OF_PROFILES, ids=lambda draw: draw.__name__)
    def test_a_name_begins_no_formula_and_need_not_be_latin(self, draw) -> None:
        profile = replace(pipeline_profile(), name="$\\frac{ 模型 <b>")
        assert "$\\frac{ ?? <b>" in draw(profile).axes[0].get_title(loc="left")

    def test_drawing_leaves_the_caller_s_own_style_alone(self) -> None:
        before = dict(matplotlib.rcParams)
        for draw in OF_PROFILES:
            figures.png(draw(inference_profile()))
        assert dict(matplotlib.rcParams) == before

    def test_nothing_else_of_the_engine_imports_matplotlib(self) -> None:
        engine = Path(str(ipu_model.__file__)).parent
        users = set()
        for file in engine.rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            types = {
                below
                for node in ast.walk(tree)
                if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
                for below in ast.walk(node)
            }
            for node in set(ast.walk(tree)) - types:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                if any(name.split(".")[0] == "matplotlib" for name in names):
                    users.add(file.parent.relative_to(engine).as_posix())
        assert users == {"report/figures"}


class TestTimeline:
    def test_there_is_a_row_for_each_ipu_and_a_key_for_each_kind_of_work(self) -> None:
        figure = figures.timeline_figure(pipeline_profile())
        assert rows(axes_of(figure)) == ["IPU 0", "IPU 1"]
        used = ["forward", "recompute", "backward", "update", "stream in", "stream out", "copy", "wait"]
        assert legend(figure) == used

    def test_passes_carry_their_letter_and_micro_batch(self) -> None:
        said = texts(axes_of(figures.timeline_figure(pipeline_profile())))
        # Eight micro-batches: both IPUs run them forward and backward, IPU 0 once more forward.
        for letter, ipus in (("F", 2), ("B", 2), ("R", 1)):
            assert [said.count(f"{letter}{number}") for number in range(1, 9)] == [ipus] * 8

    def test_time_begins_with_the_device_and_ends_with_it(self) -> None:
        profile = pipeline_profile(loader=3.0)
        axes = axes_of(figures.timeline_figure(profile))
        assert axes.get_xlabel() == "time since the device began (ms)"
        assert axes.get_xlim() == pytest.approx((0, 1000 * profile.device_seconds_per_call))

    def test_bars_are_as_long_as_their_spans(self) -> None:
        profile = with_spans(Span("IPU 0", "forward", 1.0, 2.0), Span("IPU 0", "update", 3.0, 0.5))
        drawn = axes_of(figures.timeline_figure(profile)).collections
        corners = [tuple(bars.get_paths()[0].get_extents().intervalx) for bars in drawn]
        assert corners == [pytest.approx((0.0, 2.0)), pytest.approx((2.0, 2.5))]

    def test_what_stands_for_several_carries_their_number_and_a_break(self) -> None:
        figure = figures.timeline_figure(pipeline_profile(collapsed=True))
        said = texts(axes_of(figure))
        assert said.count("F ×6") == said.count("B ×6") == 2
        assert said.count("R ×6") == 1
        assert "×n: n of them drawn together; really they take turns" in legend(figure)
        assert len(axes_of(figure).lines) > 0

    def test_a_window_shows_a_part(self) -> None:
        axes = axes_of(figures.timeline_figure(pipeline_profile(), window=(0.005, 0.010)))
        assert axes.get_xlim() == pytest.approx((5, 10))
        assert "a part of one call (5 ms, modelled)" in axes.get_title(loc="left")
        assert "B8" not in texts(axes)

    def test_no_timeline_is_said_in_words(self) -> None:
        assert "nothing was scheduled" in texts(axes_of(figures.timeline_figure(with_spans())))


class TestHostAndDevice:
    def test_rows_are_loader_host_and_device_with_their_times(self) -> None:
        axes = axes_of(figures.host_device_figure(pipeline_profile(loader=0.0922)))
        assert rows(axes) == ["loader", "host", "device"]
        assert {"92.20 ms", "42.41 ms", "next call"} <= set(texts(axes))

    def test_a_line_marks_the_next_call(self) -> None:
        profile = pipeline_profile(overlaps=True)
        (line,) = axes_of(figures.host_device_figure(profile)).lines
        assert list(line.get_xdata()) == pytest.approx([1000 * profile.call_seconds] * 2)


class TestMemory:
    def test_every_tile_of_both_ipus_is_drawn_below_the_limit(self) -> None:
        profile = pipeline_profile()
        axes = axes_of(figures.memory_per_tile_figure(profile))
        tops = [area.get_paths()[0].get_extents().y1 for area in axes.collections]
        assert tops == pytest.approx([memory.max_tile_bytes / KIB for memory in profile.memory])
        said = texts(axes)
        assert "limit: 638,976 bytes (624 KiB)" in said
        assert "fullest: 548,900 bytes (tile 47)" in said
        assert [label.get_text() for label in axes.get_xticklabels()] == [
            "IPU 0, tiles 0 to 1471",
            "IPU 1, tiles 0 to 1471",
        ]
        assert axes.get_ylabel() == "memory of a tile (KiB)"

    def test_groups_of_categories_lie_on_top_of_each_other(self) -> None:
        """Real profiles know every tile by category; the uppermost area ends at the fullest tile."""
        profile = profile_program(day03_program())
        figure = figures.memory_per_tile_figure(profile)
        tops = [area.get_paths()[0].get_extents().y1 for area in axes_of(figure).collections]
        groups = ["parameters", "code", "activations", "temporary data", "other"]
        count = len(groups)
        assert len(tops) == 2 * count
        assert tops == sorted(tops[:count]) + sorted(tops[count:])
        assert [tops[count - 1], tops[-1]] == pytest.approx([memory.max_tile_bytes / KIB for memory in profile.memory])
        said = [key.get_text() for key in figure.legends[0].get_texts()]
        assert said == ["parameters", "code", "activations, gradients", "temporary data", "other"]

    def test_what_is_above_the_limit_looks_different(self) -> None:
        axes = axes_of(figures.memory_per_tile_figure(pipeline_profile(fits=False)))
        assert [bool(area.get_hatch()) for area in axes.collections].count(True) == 2

    def test_categories_have_a_bar_and_a_number_for_each_ipu(self) -> None:
        profile = pipeline_profile()
        axes = axes_of(figures.memory_category_figure(profile))
        assert rows(axes)[:2] == ["activations", "optimiser state"]
        held = [c.bytes_on_fullest_tile for memory in profile.memory for c in memory.categories]
        assert sorted(bar.get_width() for bar in axes.patches) == sorted(held)
        assert {"149,000", "73,000"} <= set(texts(axes))

    def test_what_shares_its_place_is_hatched(self) -> None:
        profile = pipeline_profile()
        axes = axes_of(figures.memory_category_figure(profile))
        shared = [c.bytes_on_fullest_tile for m in profile.memory for c in m.categories if not c.always_live]
        assert sorted(bar.get_width() for bar in axes.patches if bar.get_hatch()) == sorted(shared)

    def test_of_many_ipus_the_fullest_four_are_shown(self) -> None:
        axes = axes_of(figures.memory_per_tile_figure(wide_profile(16)))
        shown = [label.get_text().split(",")[0] for label in axes.get_xticklabels()]
        assert shown == ["IPU 1", "IPU 3", "IPU 5", "IPU 7"]

    def test_liveness_marks_the_peak_and_names_the_phases(self) -> None:
        profile = pipeline_profile()
        figure = figures.liveness_figure(profile)
        assert len(figure.axes) == 2
        for axes, memory in zip(figure.axes, profile.memory):
            peak = max(memory.liveness, key=lambda step: step.bytes_on_tile)
            said = texts(axes)
            assert f"{peak.bytes_on_tile:,.0f} bytes at {peak.name or peak.node}" in said
            assert {"forward", "backward"} <= set(said)

    def test_the_room_for_it_is_what_always_live_data_leaves(self) -> None:
        profile = pipeline_profile()
        axes = figures.liveness_figure(profile).axes[0]
        room = (638_976 - profile.memory[0].always_live_bytes) / KIB
        assert any(list(line.get_ydata()) == pytest.approx([room, room]) for line in axes.lines)

    def test_where_always_live_data_fill_the_tile_it_says_that_there_is_no_room(self) -> None:
        profile = pipeline_profile()
        held = tuple(
            replace(each, bytes_on_fullest_tile=640_000.0) if each.always_live else each
            for each in profile.memory[0].categories
        )
        full = replace(profile.memory[0], categories=held)
        crowded = replace(profile, memory=replace(profile.memory, ipus=(full, *profile.memory[1:])))
        said = [texts(axes) for axes in figures.liveness_figure(crowded).axes]
        assert [any("no room" in text for text in each) for each in said] == [True, False]

    def test_without_liveness_it_says_so(self) -> None:
        (axes,) = figures.liveness_figure(inference_profile()).axes
        assert texts(axes) == ["nothing lives for a part of the time only"]


class TestCycles:
    def test_the_bars_of_an_ipu_are_the_shares_of_its_phases(self) -> None:
        profile = pipeline_profile()
        axes = axes_of(figures.cycles_figure(profile))
        for ipu, cycles in enumerate(profile.cycles):
            bars = [bar for bar in axes.patches if ipu - 0.5 < bar.get_y() < ipu + 0.5]
            shares = [getattr(cycles, field) / cycles.total for field in PHASE_NAMES]
            assert [bar.get_width() for bar in bars] == pytest.approx(shares)

    def test_large_shares_are_written_on_their_bars(self) -> None:
        profile = pipeline_profile()
        share = profile.cycles[0].on_tile_execute / profile.cycles[0].total
        assert f"{100 * share:.1f} %" in texts(axes_of(figures.cycles_figure(profile)))


class TestThroughput:
    POINTS = tuple(figures.ThroughputPoint(2**n, 1000.0 * (n + 1), 500.0 * (n + 1), fits=n < 4) for n in range(6))

    def test_there_is_a_line_for_the_device_and_one_from_end_to_end(self) -> None:
        axes = axes_of(figures.throughput_figure(self.POINTS, "gradient accumulation", "micro-batches per update"))
        device, end_to_end = axes.lines[:2]
        assert list(device.get_xdata()) == [1, 2, 4, 8, 16, 32]
        assert list(device.get_ydata()) == [point.device for point in self.POINTS]
        assert list(end_to_end.get_ydata()) == [point.end_to_end for point in self.POINTS]
        assert device.get_linestyle() != end_to_end.get_linestyle()
        assert axes.get_xlabel() == "gradient accumulation (micro-batches per update)"
        assert axes.get_ylabel() == "samples per second"
        assert axes.get_xscale() == "log"

    def test_settings_that_do_not_fit_are_crossed_out(self) -> None:
        axes = axes_of(figures.throughput_figure(self.POINTS, "accumulation"))
        crosses = [line for line in axes.lines if line.get_marker() == "x"]
        assert [list(line.get_xdata()) for line in crosses] == [[16, 32], [16, 32]]
        legend_of_axes = axes.get_legend()
        assert legend_of_axes is not None
        assert "does not fit" in [text.get_text() for text in legend_of_axes.get_texts()]

    def test_a_point_comes_from_a_profile(self) -> None:
        profile = pipeline_profile(fits=False)
        point = figures.ThroughputPoint.of(8, profile)
        assert (point.device, point.end_to_end) == (profile.device_samples_per_second, profile.samples_per_second)
        assert not point.fits

    def test_settings_may_be_words(self) -> None:
        points = [figures.ThroughputPoint(name, 2.0, 1.0) for name in ("sync", "async")]
        axes = axes_of(figures.throughput_figure(points, "loader", chosen="async"))
        assert [label.get_text() for label in axes.get_xticklabels()] == ["sync", "async"]
        assert "1 samples/s" in texts(axes)

    def test_settings_of_both_kinds_and_none_at_all_are_refused(self) -> None:
        with pytest.raises(Error, match="numbers or words, not both"):
            figures.throughput_figure([figures.ThroughputPoint(1, 1, 1), figures.ThroughputPoint("x", 1, 1)], "knob")
        with pytest.raises(Error, match="at least one point"):
            figures.throughput_figure([], "knob")


class TestStyle:
    def test_every_kind_and_every_phase_has_a_look(self) -> None:
        assert set(SPAN_KINDS) <= set(looks.SPAN_LOOKS)
        assert set(looks.PHASE_LOOKS) == set(PHASE_NAMES.values())

    @pytest.mark.parametrize(
        "table", [looks.SPAN_LOOKS, looks.PHASE_LOOKS, looks.FAMILY_LOOKS], ids=["spans", "phases", "families"]
    )
    def test_looks_differ_on_grey_paper_by_lightness_or_hatching(self, table) -> None:
        together = {name: look for name, look in table.items() if name not in ("load", "call", "works")}
        for name, look in together.items():
            for other, another in together.items():
                if name < other:
                    lighter = abs(luminance(look.face) - luminance(another.face)) > 0.05
                    assert lighter or look.hatch != another.hatch, (name, other)

    @pytest.mark.parametrize("kind", looks.SPAN_LOOKS)
    def test_the_box_behind_text_on_a_hatched_bar_is_light(self, kind: str) -> None:
        look = looks.SPAN_LOOKS[kind]
        box = plate(look)
        assert (box is None) == (not look.hatch)
        if box is not None:
            # 7 to 1: WCAG's stricter bound, because the text is small.
            assert (luminance(box["facecolor"]) + 0.05) / (luminance(look.text) + 0.05) > 7

    def test_the_loader_s_time_stands_on_such_a_box(self) -> None:
        axes = axes_of(figures.host_device_figure(pipeline_profile(overlaps=True, loader=0.9)))
        (label,) = (text for text in axes.texts if text.get_text() == "900.0 ms")
        box = label.get_bbox_patch()
        assert box is not None
        assert to_rgb(box.get_facecolor()) == to_rgb("white")

    @pytest.mark.parametrize("name", looks.SPAN_LOOKS)
    def test_text_on_a_bar_can_be_read(self, name: str) -> None:
        look = looks.SPAN_LOOKS[name]
        lighter, darker = sorted((luminance(look.face), luminance(look.text)), reverse=True)
        # 3 to 1: WCAG's bound for large text and for parts of graphics; "update" in white on ORANGE has 3.9.
        assert (lighter + 0.05) / (darker + 0.05) > 3
