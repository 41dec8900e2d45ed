"""The figures, which draw the numbers of a profile and can be told apart without colour, and the trace.

The trace has events as chrome://tracing and Perfetto read them, with ops, passes, streams, host and memory.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import matplotlib
import pytest
from hypothesis import given, settings
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from report_support import PROFILE_KINDS, PROFILES, inference_profile, pipeline_profile, wide_profile

from ipu_model.predict import profile_program
from ipu_model.predict.profile import SPAN_KINDS, Profile, Span
from ipu_model.predict.program import Recomputation
from ipu_model.report import looks
from ipu_model.report.breakdown import PHASE_NAMES
from ipu_model.report.figures import DRAWN, WIDTH_INCHES
from ipu_model.report.quantities import KIB
from ipu_model.report.trace import passes, trace_json
from published.convolutional import day03_program


def axes_of(kind: str, profile: Profile) -> Axes:
    (axes,) = DRAWN[kind](profile).axes
    return axes


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def rows(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("draw", DRAWN)
def test_every_figure_is_a_picture_with_a_title_that_says_modelled_and_names_that_need_not_be_latin(draw: str) -> None:
    before = dict(matplotlib.rcParams)
    for make in PROFILE_KINDS.values():
        figure = DRAWN[draw](make())
        assert "modelled" in figure.axes[0].get_title(loc="left")
        assert figure.get_figwidth() == WIDTH_INCHES
        figure.savefig(io.BytesIO(), format="svg")
    assert dict(matplotlib.rcParams) == before
    # Nor does a dollar begin a formula.
    figure = DRAWN[draw](replace(pipeline_profile(), name="$\\frac{ 模型 <b>"))
    assert "$\\frac{ ?? <b>" in figure.axes[0].get_title(loc="left")


class TestTimeline:
    def test_there_is_a_row_for_each_ipu_and_a_key_for_each_kind_of_work(self) -> None:
        figure = DRAWN["timeline"](pipeline_profile(loader=3.0))
        (axes,) = figure.axes
        assert rows(axes) == ["IPU 0", "IPU 1"]
        used = ["forward", "recompute", "backward", "update", "stream in", "stream out", "copy", "wait"]
        assert legend(figure) == used
        # Eight micro-batches: both IPUs run them forward and backward, IPU 0 once more forward.
        for letter, ipus in (("F", 2), ("B", 2), ("R", 1)):
            assert [texts(axes).count(f"{letter}{number}") for number in range(1, 9)] == [ipus] * 8
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
        figure = DRAWN["timeline"](pipeline_profile(accumulation=24))
        (axes,) = figure.axes
        assert [texts(axes).count(words) for words in ("F ×21", "B ×21", "R ×21")] == [2, 2, 1]
        assert "×n: n of them drawn together; really they take turns" in legend(figure)
        assert len(axes.lines) > 0

    def test_host_and_device_have_rows_with_their_times_and_a_line_where_the_next_call_begins(self) -> None:
        axes = axes_of("host-device", pipeline_profile(loader=0.0922))
        assert rows(axes) == ["loader", "host", "device"]
        assert {"92.20 ms", "42.17 ms", "next call"} <= set(texts(axes))
        profile = pipeline_profile(overlaps=True)
        (line,) = axes_of("host-device", profile).lines
        assert list(line.get_xdata()) == pytest.approx([1000 * profile.call_seconds] * 2)


class TestMemory:
    def test_every_tile_of_both_ipus_is_drawn_below_the_limit(self) -> None:
        profile = pipeline_profile()
        axes = axes_of("memory-per-tile", profile)
        tops = [area.get_paths()[0].get_extents().y1 for area in axes.collections]
        assert tops == pytest.approx([memory.max_tile_bytes / KIB for memory in profile.memory])
        assert {"limit: 638,976 bytes (624 KiB)", "fullest: 548,900 bytes (tile 47)"} <= set(texts(axes))
        shown = [label.get_text() for label in axes.get_xticklabels()]
        assert shown == ["IPU 0, tiles 0 to 1471", "IPU 1, tiles 0 to 1471"]
        assert axes.get_ylabel() == "memory of a tile (KiB)"
        # What is above the limit looks different, and of many IPUs the fullest four are shown.
        too_large = axes_of("memory-per-tile", pipeline_profile(fits=False))
        assert [bool(area.get_hatch()) for area in too_large.collections].count(True) == 2
        labels = axes_of("memory-per-tile", wide_profile(16)).get_xticklabels()
        assert [label.get_text().split(",")[0] for label in labels] == ["IPU 1", "IPU 3", "IPU 5", "IPU 7"]

    def test_groups_of_categories_lie_on_top_of_each_other(self) -> None:
        """Real profiles know every tile by category; the uppermost area ends at the fullest tile."""
        profile = profile_program(day03_program())
        figure = DRAWN["memory-per-tile"](profile)
        tops = [area.get_paths()[0].get_extents().y1 for area in figure.axes[0].collections]
        groups = ["parameters", "code", "activations, gradients", "temporary data", "other"]
        assert len(tops) == 2 * len(groups)
        assert tops == sorted(tops[:5]) + sorted(tops[5:])
        assert [tops[4], tops[9]] == pytest.approx([memory.max_tile_bytes / KIB for memory in profile.memory])
        assert legend(figure) == groups

    def test_categories_have_a_bar_and_a_number_for_each_ipu_hatched_where_they_share_their_place(self) -> None:
        profile = pipeline_profile()
        axes = axes_of("memory-categories", profile)
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


# --- looks


def luminance(colour: str) -> float:
    """Return how light a colour is on grey paper (Rec. 709)."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("table", ["SPAN_LOOKS", "PHASE_LOOKS", "FAMILY_LOOKS"])
def test_looks_differ_on_grey_paper_by_lightness_or_hatching(table: str) -> None:
    assert set(SPAN_KINDS) <= set(looks.SPAN_LOOKS)
    assert set(looks.PHASE_LOOKS) == set(PHASE_NAMES.values())
    together = {name: look for name, look in getattr(looks, table).items() if name not in ("load", "call", "works")}
    for name, look in together.items():
        for other, another in together.items():
            if name < other:
                lighter = abs(luminance(look.face) - luminance(another.face)) > 0.05
                assert lighter or look.hatch != another.hatch, (name, other)


# --- the trace

Event = dict[str, Any]


class Trace:
    """A trace as a strict reader takes it: no repeated names, no numbers that JSON does not have."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.text = trace_json(profile)
        self.whole = json.loads(self.text, object_pairs_hook=_unique, parse_constant=pytest.fail)
        self.events: list[Event] = self.whole["traceEvents"]
        self.threads = {e["tid"]: e["args"]["name"] for e in self.of("M") if e["name"] == "thread_name"}

    def of(self, phase: str) -> list[Event]:
        return [event for event in self.events if event["ph"] == phase]

    def on(self, thread: str) -> list[Event]:
        (number,) = [tid for tid, known in self.threads.items() if known == thread]
        return [event for event in self.of("X") if event["tid"] == number]

    def require_sound(self) -> None:
        """Require what viewers rely on: all fields, order of time, and no overlap on a thread to the nanosecond."""
        assert set(self.whole) == {"traceEvents", "displayTimeUnit", "otherData"}
        timed = [event for event in self.events if event["ph"] != "M"]
        assert all(a["ts"] <= b["ts"] for a, b in pairwise(timed))
        assert {event["tid"] for event in self.of("X")} == set(self.threads)
        ends: dict[int, int] = {}
        for event in self.events:
            assert event["ph"] in ("M", "X", "C")
            assert (type(event["name"]), type(event["pid"]), type(event["tid"])) == (str, int, int)
            assert isinstance(event["args"], dict)
            if event["ph"] == "C":
                assert all(isinstance(value, (int, float)) for value in event["args"].values())
            if event["ph"] == "X":
                begin = round(1000 * event["ts"])
                assert begin >= ends.get(event["tid"], 0)
                assert event["dur"] >= 0
                ends[event["tid"]] = begin + round(1000 * event["dur"])


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@lru_cache(maxsize=4)
def resnet(accumulation: int = 8) -> Trace:
    """Return the trace of ResNet-101 over two IPUs, which recomputes on the first."""
    program = replace(day03_program(), recomputation=Recomputation.PIPELINE)
    return Trace(profile_program(replace(program, batching=replace(program.batching, accumulation=accumulation))))


class TestPasses:
    @settings(max_examples=40)
    @given(PROFILES)
    def test_any_profile_gives_a_sound_trace(self, profile: Profile) -> None:
        Trace(profile).require_sound()

    def test_the_threads_are_the_resources_and_the_process_is_the_program(self) -> None:
        trace = Trace(pipeline_profile())
        assert list(trace.threads.values()) == ["loader", "host", "IPU 0", "IPU 1"]
        (process,) = [event for event in trace.of("M") if event["name"] == "process_name"]
        assert process["args"] == {"name": "resnet101 (modelled on POD4)"}
        for name in ("IPU 0", "IPU 1"):
            total = sum(event["dur"] for event in trace.on(name))
            assert total == pytest.approx(1e6 * trace.profile.device_seconds_per_call, abs=0.1)

    def test_times_are_microseconds_and_what_stands_for_several_says_so(self) -> None:
        (forward,) = [event for event in Trace(inference_profile()).of("X") if event["cat"] == "forward"]
        # 1,000 cycles at 1.33 GHz, in whole nanoseconds.
        assert forward["dur"] == pytest.approx(1000 / 1330, abs=0.0005)
        assert (forward["name"], forward["args"]) == ("forward 1", {"micro-batch": 1})
        spans = Trace(pipeline_profile(accumulation=24)).of("X")
        repeated = {event["name"] for event in spans if event["args"].get("repeats") == 21}
        assert {"forward x 21", "recompute + backward x 21", "backward x 21"} <= repeated

    def test_every_micro_batch_of_two_device_iterations_is_an_event_with_its_number(self) -> None:
        traces = [Trace(pipeline_profile(updates=updates)).on("IPU 1") for updates in (1, 2)]
        kinds = ("forward", "backward", "update")
        once, twice = ([event for event in events if event["cat"] in kinds] for events in traces)
        numbers = [event["args"]["micro-batch"] for event in twice if event["cat"] == "forward"]
        assert numbers == [*range(1, 17)]
        assert [event["cat"] for event in twice] == 2 * [event["cat"] for event in once]
        assert [event["dur"] for event in twice] == pytest.approx(2 * [event["dur"] for event in once], abs=0.002)
        texts_of_both = texts(axes_of("timeline", pipeline_profile(updates=2)))
        assert [texts_of_both.count(f"B{number}") for number in range(1, 17)] == [2] * 16

    def test_a_recomputation_is_one_pass_with_what_follows_it_at_once(self) -> None:
        one = Span("IPU 0", "recompute", 1.0, 2.0, stage=0, micro_batch=3)
        two = Span("IPU 0", "backward", 3.0, 4.0, stage=0, micro_batch=3)
        (both,) = passes((one, two))
        assert (both.kind, both.start, both.end) == ("backward", 1.0, 7.0)
        assert list(passes((one, replace(two, micro_batch=4)))) == [one, replace(two, micro_batch=4)]
        assert list(passes((one,))) == [one]


class TestOps:
    def test_each_ipu_has_a_thread_of_ops_in_the_order_of_execution_within_their_passes(self) -> None:
        """Recomputation and backward pass alternate there as they run."""
        resnet().require_sound()
        for memory in resnet().profile.memory:
            drawn = resnet().on(f"IPU {memory.ipu} ops")
            for phases in (("forward",), ("recompute", "backward")):
                shown = [(event["name"], event["cat"]) for event in drawn if event["cat"] in phases]
                steps = [(step.name, step.phase) for step in memory.liveness if step.phase in phases]
                assert shown[: len(steps)] == steps
            working = [event for event in resnet().on(f"IPU {memory.ipu}") if event["cat"] != "wait"]
            spans = [(event["ts"], event["ts"] + event["dur"]) for event in working]
            for op in drawn:
                assert any(begin <= op["ts"] + 2e-3 and op["ts"] + op["dur"] <= end + 2e-3 for begin, end in spans)
        # Every pass that is drawn alone has all its ops.
        profile = resnet().profile
        steps = Counter(step.phase for step in profile.memory[1].liveness)
        alone = Counter(s.kind for s in profile.timeline if s.ipu == 1 and s.repeats == 1)
        drawn = Counter(event["cat"] for event in resnet().on("IPU 1 ops"))
        assert drawn["forward"] == alone["forward"] * steps["forward"]

    def test_all_but_one_of_the_equal_micro_batches_are_blocks_so_that_the_size_does_not_grow(self) -> None:
        """Two stages: two cycles fill the pipeline and two drain it, and of those between only the first is drawn."""
        few, many = resnet(24), resnet(1752)
        drawn = [event["name"] for event in many.on("IPU 0") if event["cat"] == "forward"]
        assert drawn == ["forward 1", "forward 2", "forward 3", f"forward x {1752 - 3}"]
        ops = [event for event in many.on("IPU 0 ops") if event["cat"] != "update"]
        assert {event["args"]["micro-batch"] for event in ops} == {1, 2, 3, 1751, 1752}
        assert len(many.text) == pytest.approx(len(few.text), rel=0.2)
        assert len(many.text) < 20e6

    def test_an_op_says_what_it_works_on_at_first_and_memory_is_a_counter_that_reaches_the_peak(self) -> None:
        first = next(event for event in resnet().on("IPU 0 ops") if event["name"].endswith("conv1: convolution"))
        assert "float16[64, 3, 64, 64]" in first["args"]["operands"]
        assert first["args"]["FLOPs"] > 0
        assert 0 < first["args"]["share of the matrix units' peak"] < 1
        for memory in resnet().profile.memory:
            name = f"IPU {memory.ipu}: memory of the fullest tile"
            held = [event["args"]["KiB"] for event in resnet().of("C") if event["name"] == name]
            assert max(held) == pytest.approx(memory.max_tile_bytes / 1024, abs=1)
