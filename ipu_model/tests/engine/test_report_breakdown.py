"""Rows of the timeline: nothing overlaps in one, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from report_strategies import SPANS, few
from report_support import pipeline_profile

from ipu_model.predict.profile import Span
from ipu_model.report.breakdown import all_rows, device_rows, host_rows


def names(rows) -> list[str]:
    return [row.name for row in rows]


class TestRows:
    @given(few(SPANS, most=12))
    def test_every_span_is_in_one_row_of_its_resource(self, timeline: tuple[Span, ...]) -> None:
        rows = all_rows(timeline)
        placed = [span for row in rows for span in row.spans]
        assert sorted(map(repr, placed)) == sorted(map(repr, timeline))
        for row in rows:
            assert len({span.resource for span in row.spans}) == 1
            assert row.name.startswith(row.spans[0].resource)

    @given(few(SPANS, most=12))
    def test_nothing_overlaps_in_a_row(self, timeline: tuple[Span, ...]) -> None:
        for row in all_rows(timeline):
            for before, after in zip(row.spans, row.spans[1:]):
                assert before.end <= after.start + 1e-9

    def test_the_loader_comes_first_then_the_host_and_ipus_by_number(self) -> None:
        ipus = [Span(f"IPU {ipu}", "forward", 0.0, 1.0, ipu=ipu) for ipu in (10, 9)]
        kinds = {"link": "copy", "host": "call", "a loader": "load"}
        spans = [*ipus, *(Span(name, kind, 0.0, 1.0) for name, kind in kinds.items())]
        assert names(all_rows(spans)) == ["a loader", "host", "IPU 9", "IPU 10", "link"]

    def test_what_overlaps_goes_to_a_row_of_its_own(self) -> None:
        spans = [Span("host", "load", 0.0, 2.0), Span("host", "call", 1.0, 2.0), Span("host", "load", 2.0, 1.0)]
        rows = all_rows(spans)
        assert names(rows) == ["host", "host (2)"]
        assert [span.kind for span in rows[0].spans] == ["load", "load"]


class TestHostAndDevice:
    def test_the_device_s_rows_start_where_it_begins(self) -> None:
        profile = pipeline_profile(loader=0.5)
        rows = device_rows(profile.timeline)
        assert names(rows) == ["IPU 0", "IPU 1"]
        assert min(span.start for row in rows for span in row.spans) == 0.0
        assert max(row.spans[-1].end for row in rows) == pytest.approx(profile.device_seconds_per_call)

    def test_the_host_s_rows_show_the_device_as_a_whole(self) -> None:
        profile = pipeline_profile(loader=0.5)
        rows = host_rows(profile.timeline)
        assert names(rows) == ["loader", "host", "device"]
        (device,) = rows[-1].spans
        assert device.seconds == pytest.approx(profile.device_seconds_per_call)
        assert device.end == pytest.approx(profile.call_seconds)

    def test_there_may_be_no_device_and_no_host(self) -> None:
        assert host_rows(()) == device_rows(()) == ()
        assert names(host_rows([Span("host", "call", 0.0, 1.0)])) == ["host"]
        assert names(host_rows([Span("IPU 0", "forward", 0.0, 1.0)])) == ["device"]

    def test_waiting_is_not_being_busy(self) -> None:
        (row,) = all_rows([Span("IPU 0", "forward", 0.0, 1.0), Span("IPU 0", "wait", 1.0, 5.0)])
        assert row.busy_seconds == 1.0
