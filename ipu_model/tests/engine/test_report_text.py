"""What reports say in words and numbers, and the report for a terminal, which is small and plain for any profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_support import (
    ADVICE,
    PROFILE_KINDS,
    PROFILES,
    SPANS,
    few,
    inference_profile,
    pipeline_profile,
    resized,
    search_result,
    wide_profile,
)

from ipu_model.explore.options import Risk
from ipu_model.predict import profile_program
from ipu_model.predict.host import CallTime, HostWork
from ipu_model.predict.profile import ErrorBand, LiveTensor, Memory, PhaseCycles, Profile, Span, close_band
from ipu_model.report.breakdown import all_rows, device_rows, host_rows
from ipu_model.report.findings import cycles_spent, device_range, end_to_end_range, explained_limit, roofline, verdict
from ipu_model.report.page import first_steps, holders
from ipu_model.report.quantities import change, duration, percent, plain, rate, short, size, whole
from ipu_model.report.text import MOST_LINES, WIDTH, text_report
from published.convolutional import day03_program

TIMES = st.floats(1e-4, 10.0)


# --- quantities


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
        (lambda value: change(*value), (100, 152.6), "+52.6 %"), (lambda value: change(*value), (100, 50), "-50.0 %"),
        (lambda value: change(*value), (3, 3), "same"), (lambda value: change(*value), (0, 0), "same"),
        (lambda value: change(*value), (0, 3), "new"), (lambda value: change(*value), (3, 0), "gone"),
        (lambda value: change(*value), (1, 9.5), "+850.0 %"), (lambda value: change(*value), (2, 9_322), "x 4,661"),
        (lambda value: change(*value), (9_322, 2), "x 1/4,661"),
    ],
)  # fmt: skip
def test_a_number_or_a_change_reads_like_this(function: Callable[..., str], value: object, text: str) -> None:
    assert function(value) == text


@given(st.text(), st.text("abc xyz,.-()"))
def test_plain_text_is_one_printable_line_of_ascii_with_all_its_words(text: str, words: str) -> None:
    assert plain(text).isascii()
    assert plain(text).isprintable()
    assert plain(words).split() == words.split()


# --- findings


@given(TIMES, TIMES, TIMES, st.booleans(), st.floats(0.3, 1.0), st.floats(1.0, 3.0))
def test_ranges_of_rates(loader, host, device, overlaps, low, high) -> None:
    """The device's is its band; end to end it is what the model of the host makes of another device time."""
    call = CallTime(loader, host, device, overlaps)
    profile = replace(
        inference_profile(), device_seconds_per_call=device, call_seconds=call.total,
        host_seconds_per_call=loader + host, error_band=ErrorBand(low, high),
        timeline=(Span("loader", "load", 0.0, loader),), host=HostWork(loader, workers=int(overlaps)),
    )  # fmt: skip
    found, alone = end_to_end_range(profile), device_range(profile)
    assert found.low == pytest.approx(1 / replace(call, device=device * high).total)
    assert found.high == pytest.approx(1 / replace(call, device=device * low).total)
    assert (alone.low, alone.high) == pytest.approx((alone.value / high, alone.value / low))


def test_verdict_and_limits_in_words() -> None:
    assert verdict(inference_profile()) == "fits: fullest tile 1,000 of 638,976 bytes (0.2 %), tile 0 of IPU 0"
    for limit in ("host loader", "host call", "run start", "stream", "pipeline fill and flush", "weight update"):
        assert explained_limit(limit).endswith(".")
    assert explained_limit("stage 3").startswith("Stage 3 has the most work")
    assert explained_limit("the weather") == ""


def one_op(cycles: PhaseCycles) -> Profile:
    """Two runs of an op of 1,000 cycles, 600 of them computing: 64,000 FLOPs where 128 a cycle are possible."""
    profile = inference_profile()
    op = replace(
        profile.ops[0], on_tile_execute=600.0, do_exchange=300.0, internal_sync=100.0, flops=64_000, executions=2,
        accessed_bytes=16_000.0, peak_flops_per_cycle=128.0,
    )  # fmt: skip
    return replace(profile, ops=(op,), cycles=(cycles,), device_seconds_per_call=profile.machine.seconds(cycles.total))


def test_every_part_of_the_cycles_has_its_name_and_shares_add_up() -> None:
    """Two runs of 500 ideal cycles each: 1,000 at the peak, 200 of the 1,200 that they compute beyond it."""
    assert {part.name: part.cycles for part in cycles_spent(one_op(PhaseCycles(
        on_tile_execute=1500.0, do_exchange=600.0, global_exchange=300.0, stream_copy_begin=100.0,
        stream_copy_mid=200.0, stream_copy_end=100.0, internal_sync=200.0, external_sync=1000.0,
    )))} == {
        "at the matrix units' peak": 1000.0,
        "contractions below the peak": 200.0,
        "other computation": 300.0,
        "exchange between tiles": 600.0,
        "synchronisation of tiles": 200.0,
        "copies between IPUs": 300.0,
        "host and streaming memory": 400.0,
        "waiting for other IPUs": 1000.0,
    }  # fmt: skip
    for make in PROFILE_KINDS.values():
        assert sum(part.share for part in cycles_spent(make())) == pytest.approx(1.0)
        assert all(part.explanation.endswith(".") for part in cycles_spent(make()))
    # 128,000 FLOPs in 4,000 cycles are a quarter of 128 a cycle; in the contractions' own 2,000 they are half.
    found = roofline(one_op(PhaseCycles(on_tile_execute=1200.0, do_exchange=600.0, external_sync=2200.0)))
    assert found is not None
    assert (found.share, found.share_while_contracting) == pytest.approx((0.25, 0.5))
    assert (found.peak, found.intensity) == pytest.approx((128 * 1.33e9, 4.0))
    assert roofline(replace(inference_profile(), ops=())) is None


class TestRows:
    @given(few(SPANS, most=12))
    def test_every_span_is_in_a_row_of_its_resource_in_order(self, timeline: tuple[Span, ...]) -> None:
        rows = all_rows(timeline)
        assert sorted(repr(span) for row in rows for span in row.spans) == sorted(map(repr, timeline))
        for row in rows:
            assert len({span.resource for span in row.spans}) == 1
            assert row.name == row.spans[0].resource

    def test_the_loader_comes_first_then_the_host_and_ipus_by_number(self) -> None:
        kinds = {"link": "copy", "host": "call", "a loader": "load"}
        spans = [Span(f"IPU {ipu}", "forward", 0.0, 1.0, ipu=ipu) for ipu in (10, 9)]
        rows = all_rows([*spans, *(Span(name, kind, 0.0, 1.0) for name, kind in kinds.items())])
        assert [row.name for row in rows] == ["a loader", "host", "IPU 9", "IPU 10", "link"]
        later, sooner = (Span("host", "call", start, 1.0) for start in (2.0, 0.0))
        assert [row.spans for row in all_rows([later, sooner])] == [(sooner, later)]

    def test_the_device_s_rows_start_where_it_begins_and_the_host_s_show_it_as_a_whole(self) -> None:
        profile = pipeline_profile(loader=0.5)
        rows = device_rows(profile.timeline)
        assert [row.name for row in rows] == ["IPU 0", "IPU 1"]
        assert min(span.start for row in rows for span in row.spans) == 0.0
        assert max(row.spans[-1].end for row in rows) == pytest.approx(profile.device_seconds_per_call)
        rows = host_rows(profile.timeline)
        assert [row.name for row in rows] == ["loader", "host", "device"]
        (device,) = rows[-1].spans
        assert (device.seconds, device.end) == pytest.approx((profile.device_seconds_per_call, profile.call_seconds))
        # There may be no device and no host, and waiting is not being busy.
        assert host_rows(()) == device_rows(()) == ()
        assert [row.name for row in host_rows([Span("host", "call", 0.0, 1.0)])] == ["host"]
        assert [row.name for row in host_rows([Span("IPU 0", "forward", 0.0, 1.0)])] == ["device"]
        (row,) = all_rows([Span("IPU 0", "forward", 0.0, 1.0), Span("IPU 0", "wait", 1.0, 5.0)])
        assert row.busy_seconds == 1.0


# --- what holds the memory, and what to try first


@pytest.mark.parametrize("profile", [pipeline_profile(), profile_program(day03_program())])
def test_they_add_up_to_the_fullest_tile_the_largest_first_and_all_else_last(profile: Profile) -> None:
    found, most = holders(profile), profile.memory.max_tile_bytes
    assert sum(holder.bytes_on_tile for holder in found) == pytest.approx(most, rel=1e-3)
    assert sum(holder.share for holder in found) == pytest.approx(most / profile.memory.tile_bytes, rel=1e-3)
    sizes = [holder.bytes_on_tile for holder in found[:-1]]
    assert sizes == sorted(sizes, reverse=True)
    assert found[-1].name == "all else"


class TestFirstSteps:
    def test_a_search_gives_the_lines_of_the_fastest_or_says_what_keeps_it(self) -> None:
        steps = first_steps(pipeline_profile(fits=False), ADVICE, search_result())
        assert steps is not None
        assert steps.headline.startswith("With 1 change it fits and runs at ")
        assert steps.headline.endswith(" on 4 IPUs of POD4")
        assert steps.code == "poptorch.BeginBlock(model.layer, ipu_id=1)"
        assert [(step.text, step.risk) for step in steps.steps] == [("split over 4 IPUs", Risk.SCHEDULE)]
        steps = first_steps(pipeline_profile(fits=False), (), search_result(fastest=False))
        assert steps is not None
        assert steps.headline.startswith("Nothing fits with 5 % of the fullest tile free. The nearest: ")
        assert steps.explanation == "It is big."

    def test_without_one_it_is_advice_that_fits_or_the_search_or_nothing(self) -> None:
        steps = first_steps(pipeline_profile(), ADVICE, None)
        assert steps is not None
        assert (steps.title, steps.headline, steps.code) == ("The first thing to try", ADVICE[0].change, ADVICE[0].how)
        steps = first_steps(pipeline_profile(fits=False), ADVICE[1:], None)
        assert steps is not None
        assert steps.code == "python -m ipu_model fit FOLDER"
        assert ADVICE[1].change in steps.explanation
        assert first_steps(pipeline_profile(), (), None) is None


# --- the report for a terminal


def row(report: str, name: str) -> list[str]:
    (line,) = [line for line in report.splitlines() if line.strip().startswith(name + "  ")]
    return line.strip().removeprefix(name).split()


def fact(report: str, name: str) -> str:
    return " ".join(row(report, name))


class TestReport:
    def test_a_program_that_fits(self) -> None:
        report = text_report(pipeline_profile())
        assert "training, modelled with 2 IPUs a replica on POD4 (4 x GC200 at 1.33 GHz)" in report
        # The categories of IPU 1 in report_support add up to 548,900 bytes, all on tile 47; 548,900 / 638,976 = 85.9 %.
        assert fact(report, "memory") == "fits: fullest tile 548,900 of 638,976 bytes (85.9 %), tile 47 of IPU 1"
        # 512 samples in 42.17 ms; a time of 0.9 to 1.1 x the modelled one is a rate of 1 / 1.1 to 1 / 0.9.
        device = "12,141 samples/s (11,037 to 13,490); hardware time 0.9 to 1.1 x modelled"
        assert fact(report, "device") == device
        assert fact(report, "limited by") == "host loader"
        # Of 56,089,226 cycles: 6 steps of IPU 0's 5.8 million are 62.0 %, the slower update of 650,000 is 1.2 %.
        shares = "main 62.0 %, fill and flush 26.7 %, stream 9.1 %, update 1.2 %, other 0.9 %"
        assert fact(report, "device time") == shares
        assert not {"measured", "published"} & set(report.split())

    def test_every_phase_has_the_cycles_of_every_ipu(self) -> None:
        report = text_report(pipeline_profile())
        # IPU 0 runs 8 micro-batches forward, forward again and backward, then updates; 70 % of it is OnTileExecute.
        assert row(report, "OnTileExecute")[0] == f"{0.7 * (8 * (1.3e6 + 1.3e6 + 3.2e6) + 480_000):,.0f}"
        assert row(report, "StreamCopyMid") == [f"{8 * 425_600:,}", "17"]  # 64 bytes at 5 GB/s
        assert row(report, "total")[0] == row(report, "total")[1]
        names = ("OnTileExecute", "DoExchange", "GlobalExchange", "StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd",
                 "InternalSync", "ExternalSync", "total", "share of OnTileExecute")  # fmt: skip
        places = [report.index(f"  {name} ") for name in names]
        assert places == sorted(places)
        lines = report.splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("modelled cycles"))
        assert len({len(line) for line in lines[first : first + 10]}) == 1

    def test_memory_is_split_by_category_and_ops_by_part_of_the_model_and_by_kind(self) -> None:
        report = text_report(pipeline_profile())
        assert row(report, "activations *") == ["149,000", "73,000"]
        assert row(report, "optimiser state") == ["44,000", "137,400"]
        # Behind the six largest: stashes, control code, vertex state and code, host exchange code, stack.
        assert row(report, "6 more") == ["68,000", "66,000"]
        assert row(report, "fullest tile") == ["495,400", "548,900"]
        assert row(report, "model.layer3.8-22 x 15")[:4] == ["40.1", "%", "contraction", "91.1"]
        assert "ops without a formula of their own (0.1 % of these cycles): aten.topk" in report
        smallest = text_report(inference_profile())
        assert "the model  100.0 %" in smallest
        assert "without a formula" not in smallest

    def test_a_program_that_does_not_fit_is_said_to_be_hypothetical(self) -> None:
        report = text_report(resized(pipeline_profile(fits=False), 500_000))
        assert fact(report, "memory").startswith("does not fit: fullest tile 713,570 of 500,000 bytes (142.7 %)")
        assert fact(report, "end to end").endswith("if it fitted")
        near = text_report(resized(pipeline_profile(), 548_900 / (sum(close_band()) / 2)))
        assert fact(near, "memory").startswith("too close to call: fullest tile")
        assert "if it fitted" not in near

    def test_many_small_shares_become_one_and_of_many_ipus_the_busiest_are_shown(self) -> None:
        shares = {"main": 0.6, "a": 0.1, "b": 0.1, "c": 0.1, "d": 0.06, "e": 0.04}
        report = text_report(replace(wide_profile(16), shares=shares))
        assert fact(report, "device time") == "main 60.0 %, a 10.0 %, b 10.0 %, c 10.0 %, other 10.0 %"
        assert len(row(report, "OnTileExecute")) == 5
        assert "(of 16 IPUs the 5 that compute most; report.html shows all)" in report

    def test_the_largest_tensors_at_the_peak_have_the_names_of_users(self) -> None:
        """Four layers' stashes of three micro-batches: 900 + 899 + 898 + 897 bytes, which is more than the weight."""
        stashes = [
            LiveTensor(f"layers.{n}.norm: layer norm", "stashes", (8, 64), "float16", 900.0 - n, 9e5, False, 0, 9, 3)
            for n in range(4)
        ]
        weight = LiveTensor("fc.weight", "variables", (10, 64), "float32", 1000.0, 9e5, True, 0, 9)
        profile = inference_profile()
        ipu = replace(profile.memory[0], live_at_peak=(weight, *stashes))
        report = text_report(replace(profile, memory=Memory((ipu,), profile.memory.tile_bytes)))
        lines = report[report.index("largest tensors") :].splitlines()
        assert lines[1].split("  ")[1:2] == ["layers.*.norm: layer norm x 12"]
        assert lines[1].endswith("3,594")
        assert lines[2].split() == ["fc.weight", "float32[10,", "64]", "variables", "1,000"]

    @settings(max_examples=40)
    @given(PROFILES)
    def test_any_profile_gives_a_page_of_plain_text(self, profile: Profile) -> None:
        report = text_report(profile)
        lines = report.removesuffix("\n").split("\n")
        assert len(lines) <= MOST_LINES
        assert all(len(line) <= WIDTH for line in lines)
        assert report.isascii()
        assert report.replace("\n", "").isprintable()

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
    def test_notes_that_have_no_room_are_counted_and_a_name_cannot_write_to_the_terminal(self, count: int) -> None:
        notes = tuple(f"Note {n} is rather long: {'words ' * 12}" for n in range(count))
        report = text_report(replace(pipeline_profile(), notes=notes, name="\x1b[2Jnét\nwork"))
        shown = report.count("note: ")
        assert shown == count or f"({count - shown} more note" in report
        assert len(report.splitlines()) <= MOST_LINES
        assert report.startswith("\\x1b[2Jn\\xe9t work: training")
