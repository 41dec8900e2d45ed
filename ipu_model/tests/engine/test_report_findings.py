"""What reports say in words and numbers, on programs small enough to add up by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_strategies import SPANS, few
from report_support import ADVICE, PROFILE_KINDS, inference_profile, pipeline_profile, search_result

from ipu_model.explore.options import Risk
from ipu_model.predict import profile_program
from ipu_model.predict.host import CallTime
from ipu_model.predict.profile import ErrorBand, LiveTensor, Memory, PhaseCycles, Profile, Span
from ipu_model.report.breakdown import all_rows, device_rows, fullest_ipu, host_rows
from ipu_model.report.findings import (
    cycles_spent,
    device_range,
    end_to_end_range,
    explained_limit,
    roofline,
    verdict,
)
from ipu_model.report.page import first_steps, holders
from ipu_model.report.quantities import aligned, change, duration, percent, plain, rate, short, size, whole
from published.convolutional import day03_program

TIMES = st.floats(1e-4, 10.0)


class TestQuantities:
    @pytest.mark.parametrize(
        ("function", "value", "text"),
        [
            (whole, 638976.4, "638,976"),
            (short, 12345.6, "12,346"), (short, 568.94, "568.9"), (short, 42.409, "42.41"), (short, 1.23456, "1.235"),
            (short, 0, "0"), (percent, 0.5764, "57.6 %"),
            (duration, 0, "0 s"), (duration, 492e-6, "492.0 µs"), (duration, 0.0424, "42.40 ms"),
            (duration, 8.0, "8 s"), (duration, 487.3, "8 min 07 s"), (duration, 1e-9, "0.001 µs"),
            (size, 638976, "624.0 KiB"), (size, 12, "12 B"), (size, 3 * 2**20, "3.0 MiB"), (size, 3 * 2**30, "3.0 GiB"),
            (lambda value: rate(value, "FLOP/s"), 31.24e12, "31.2 TFLOP/s"),
            (lambda value: rate(value, "FLOP/s"), 0.0, "0.0 FLOP/s"),
        ],
    )  # fmt: skip
    def test_a_number_reads_like_this(self, function: Callable[[float], str], value: float, text: str) -> None:
        assert function(value) == text

    @pytest.mark.parametrize(
        ("before", "after", "text"),
        [
            (100, 152.6, "+52.6 %"), (100, 50, "-50.0 %"), (3, 3, "same"), (0, 3, "new"), (3, 0, "gone"),
            (0, 0, "same"), (1, 9.5, "+850.0 %"), (2, 9_322, "x 4,661"), (9_322, 2, "x 1/4,661"),
        ],
    )  # fmt: skip
    def test_a_change_has_a_sign_or_a_factor(self, before: float, after: float, text: str) -> None:
        assert change(before, after) == text

    @given(st.text())
    def test_plain_text_is_one_printable_line_of_ascii(self, text: str) -> None:
        assert plain(text).isascii()
        assert plain(text).isprintable()

    @given(st.text("abc xyz,.-()"))
    def test_plain_text_keeps_its_words(self, text: str) -> None:
        assert plain(text).split() == text.split()

    def test_columns_of_a_table_line_up(self) -> None:
        assert aligned([("name", "IPU 0", "IPU 1"), ("weights", "5"), ("all", "12", "7,000")]) == [
            "  name     IPU 0  IPU 1",
            "  weights      5",
            "  all         12  7,000",
        ]


class TestBands:
    def test_a_slower_device_is_the_lower_end_of_the_device_s_band(self) -> None:
        found = device_range(replace(pipeline_profile(), error_band=ErrorBand(0.8, 1.25)))
        assert (found.low, found.high) == pytest.approx((found.value * 0.8, found.value * 1.25))

    @given(TIMES, TIMES, TIMES, st.booleans(), st.floats(0.3, 1.0), st.floats(1.0, 3.0))
    def test_end_to_end_it_is_what_the_model_of_the_host_makes_of_another_device_time(
        self, loader: float, host: float, device: float, overlaps: bool, low: float, high: float
    ) -> None:
        call = CallTime(loader, host, device, overlaps)
        found = end_to_end_range(replace(
            inference_profile(), device_seconds_per_call=device, call_seconds=call.total,
            host_seconds_per_call=loader + host, error_band=ErrorBand(low, high),
            limited_by="host loader" if call.waits_for_loader else "stage 0",
        ))  # fmt: skip
        assert found.low == pytest.approx(1 / replace(call, device=device * high).total)
        assert found.high == pytest.approx(1 / replace(call, device=device * low).total)

    def test_a_program_that_waits_for_its_loader_has_no_band(self) -> None:
        found = end_to_end_range(pipeline_profile(overlaps=True, loader=0.9))
        assert found.low == found.value == found.high == pytest.approx(512 / 0.9)


class TestWords:
    def test_the_verdict_has_the_bytes_of_the_worst_tile(self) -> None:
        assert verdict(inference_profile()) == "fits: fullest tile 1,000 of 638,976 bytes (0.2 %), tile 0 of IPU 0"

    @pytest.mark.parametrize(
        "limit", ["host loader", "host call", "run start", "stream", "pipeline fill and flush", "weight update"]
    )
    def test_everything_that_limits_is_explained(self, limit: str) -> None:
        assert explained_limit(limit).endswith(".")
        assert explained_limit("stage 3").startswith("Stage 3 has the most work")
        assert explained_limit("the weather") == ""


def one_op(cycles: PhaseCycles) -> Profile:
    """Two runs of an op of 1,000 cycles, 600 of them computing: 64,000 FLOPs where 128 a cycle are possible."""
    profile = inference_profile()
    (op,) = profile.ops
    op = replace(
        op, on_tile_execute=600.0, do_exchange=300.0, internal_sync=100.0, flops=64_000, executions=2,
        accessed_bytes=16_000.0, peak_flops_per_cycle=128.0,
    )  # fmt: skip
    return replace(profile, ops=(op,), cycles=(cycles,), device_seconds_per_call=profile.machine.seconds(cycles.total))


class TestCycles:
    def test_every_part_of_the_cycles_has_its_name(self) -> None:
        """Two runs of 500 ideal cycles each: 1,000 at the peak, 200 of the 1,200 that they compute beyond it."""
        cycles = PhaseCycles(
            on_tile_execute=1500.0, do_exchange=600.0, global_exchange=300.0, stream_copy_begin=100.0,
            stream_copy_mid=200.0, stream_copy_end=100.0, internal_sync=200.0, external_sync=1000.0,
        )  # fmt: skip
        assert {part.name: part.cycles for part in cycles_spent(one_op(cycles))} == {
            "at the matrix units' peak": 1000.0,
            "contractions below the peak": 200.0,
            "other computation": 300.0,
            "exchange between tiles": 600.0,
            "synchronisation of tiles": 200.0,
            "copies between IPUs": 300.0,
            "host and streaming memory": 400.0,
            "waiting for other IPUs": 1000.0,
        }

    @pytest.mark.parametrize("kind", PROFILE_KINDS)
    def test_shares_add_up_to_one(self, kind: str) -> None:
        assert sum(part.share for part in cycles_spent(PROFILE_KINDS[kind]())) == pytest.approx(1.0)

    def test_the_roofline_counts_all_time_and_that_of_contractions(self) -> None:
        """128,000 FLOPs in 4,000 cycles are a quarter of 128 a cycle; in the contractions' own 2,000 they are half."""
        found = roofline(one_op(PhaseCycles(on_tile_execute=1200.0, do_exchange=600.0, external_sync=2200.0)))
        assert found is not None
        assert (found.share, found.share_while_contracting) == pytest.approx((0.25, 0.5))
        assert (found.peak, found.intensity) == pytest.approx((128 * 1.33e9, 4.0))
        assert roofline(replace(inference_profile(), ops=())) is None


def names(timeline: list[Span]) -> list[str]:
    return [row.name for row in all_rows(timeline)]


class TestRows:
    @given(few(SPANS, most=12))
    def test_every_span_is_in_one_row_of_its_resource_where_nothing_overlaps(self, timeline: tuple[Span, ...]) -> None:
        rows = all_rows(timeline)
        assert sorted(repr(span) for row in rows for span in row.spans) == sorted(map(repr, timeline))
        for row in rows:
            assert len({span.resource for span in row.spans}) == 1
            assert row.name.startswith(row.spans[0].resource)
            for before, after in zip(row.spans, row.spans[1:]):
                assert before.end <= after.start + 1e-9

    def test_the_loader_comes_first_then_the_host_and_ipus_by_number(self) -> None:
        ipus = [Span(f"IPU {ipu}", "forward", 0.0, 1.0, ipu=ipu) for ipu in (10, 9)]
        kinds = {"link": "copy", "host": "call", "a loader": "load"}
        spans = [*ipus, *(Span(name, kind, 0.0, 1.0) for name, kind in kinds.items())]
        assert names(spans) == ["a loader", "host", "IPU 9", "IPU 10", "link"]

    def test_what_overlaps_goes_to_a_row_of_its_own(self) -> None:
        spans = [Span("host", "load", 0.0, 2.0), Span("host", "call", 1.0, 2.0), Span("host", "load", 2.0, 1.0)]
        assert names(spans) == ["host", "host (2)"]
        assert [span.kind for span in all_rows(spans)[0].spans] == ["load", "load"]

    def test_the_device_s_rows_start_where_it_begins(self) -> None:
        profile = pipeline_profile(loader=0.5)
        rows = device_rows(profile.timeline)
        assert [row.name for row in rows] == ["IPU 0", "IPU 1"]
        assert min(span.start for row in rows for span in row.spans) == 0.0
        assert max(row.spans[-1].end for row in rows) == pytest.approx(profile.device_seconds_per_call)

    def test_the_host_s_rows_show_the_device_as_a_whole(self) -> None:
        profile = pipeline_profile(loader=0.5)
        rows = host_rows(profile.timeline)
        assert [row.name for row in rows] == ["loader", "host", "device"]
        (device,) = rows[-1].spans
        assert (device.seconds, device.end) == pytest.approx((profile.device_seconds_per_call, profile.call_seconds))

    def test_there_may_be_no_device_and_no_host(self) -> None:
        assert host_rows(()) == device_rows(()) == ()
        assert [row.name for row in host_rows([Span("host", "call", 0.0, 1.0)])] == ["host"]
        assert [row.name for row in host_rows([Span("IPU 0", "forward", 0.0, 1.0)])] == ["device"]

    def test_waiting_is_not_being_busy(self) -> None:
        (row,) = all_rows([Span("IPU 0", "forward", 0.0, 1.0), Span("IPU 0", "wait", 1.0, 5.0)])
        assert row.busy_seconds == 1.0


def tensor(name: str, category: str, count: float) -> LiveTensor:
    return LiveTensor(name, category, (4, 4), "float16", count, 1472 * count, always_live=True, first=0, last=0)


def with_tensors(*tensors: LiveTensor) -> Profile:
    """Return a profile whose fullest tile has these tensors."""
    profile = pipeline_profile()
    ipus = list(profile.memory)
    ipus[fullest_ipu(profile)] = replace(ipus[fullest_ipu(profile)], live_at_peak=tensors)
    return replace(profile, memory=Memory(tuple(ipus), profile.memory.tile_bytes))


class TestHolders:
    @pytest.mark.parametrize("profile", [pipeline_profile(), profile_program(day03_program())])
    def test_they_add_up_to_the_fullest_tile_the_largest_first_and_all_else_last(self, profile: Profile) -> None:
        found, most = holders(profile), profile.memory.max_tile_bytes
        assert sum(each.bytes_on_tile for each in found) == pytest.approx(most, rel=1e-3)
        assert sum(each.share for each in found) == pytest.approx(most / profile.memory.tile_bytes, rel=1e-3)
        sizes = [each.bytes_on_tile for each in found[:-1]]
        assert sizes == sorted(sizes, reverse=True)
        assert found[-1].name == "all else"

    def test_layers_of_a_list_count_as_one_module(self) -> None:
        tensors = [tensor(f"encoder.{n}.{part}.weight", "weights", 20_000) for n in range(4) for part in ("in", "out")]
        first = holders(with_tensors(*tensors, tensor("head.weight", "weights", 30_000)))[:2]
        assert [(each.name, each.what, each.bytes_on_tile) for each in first] == [
            ("encoder.*", "weights, 8 tensors", 160_000), ("optimiser state", "always", 137_400),
        ]  # fmt: skip

    def test_a_tensor_that_is_alone_keeps_its_name(self) -> None:
        (first, *_) = holders(with_tensors(tensor("layers.3.fc: weight gradient", "gradients", 200_000)))
        assert first.name == "layers.3.fc: weight gradient"


class TestFirstSteps:
    def test_a_search_gives_the_lines_of_the_fastest(self) -> None:
        steps = first_steps(pipeline_profile(fits=False), ADVICE, search_result())
        assert steps is not None
        assert steps.headline.startswith("With 1 change it fits and runs at ")
        assert steps.headline.endswith(" on 4 IPUs of POD4")
        assert steps.code == "poptorch.BeginBlock(model.layer, ipu_id=1)"
        assert [(each.text, each.risk) for each in steps.steps] == [("split over 4 IPUs", Risk.SCHEDULE)]

    def test_a_search_that_finds_nothing_says_what_keeps_it(self) -> None:
        steps = first_steps(pipeline_profile(fits=False), (), search_result(fastest=False))
        assert steps is not None
        assert steps.headline.startswith("Nothing fits for certain. The nearest: ")
        assert steps.explanation == "It is big."

    def test_advice_that_fits_is_the_next_best(self) -> None:
        steps = first_steps(pipeline_profile(), ADVICE, None)
        assert steps is not None
        assert (steps.title, steps.headline, steps.code) == ("The first thing to try", ADVICE[0].change, ADVICE[0].how)

    def test_where_no_single_change_is_enough_it_names_the_search(self) -> None:
        steps = first_steps(pipeline_profile(fits=False), ADVICE[1:], None)
        assert steps is not None
        assert steps.code == "python -m ipu_model fit FOLDER"
        assert ADVICE[1].change in steps.explanation

    def test_a_program_that_fits_may_need_nothing(self) -> None:
        assert first_steps(pipeline_profile(), (), None) is None
