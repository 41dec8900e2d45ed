"""The timeline: rows without gaps or overlaps that say the same as the cycles, short whatever is repeated."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_support import CLOCK, CYCLES, Times, scheduled, stages

from ipu_model.predict.profile import SPAN_KINDS, Span
from ipu_model.predict.program import Execution

COUNT = st.integers(1, 12)
WAYS = st.sampled_from(list(Execution))


def rows(spans: tuple[Span, ...]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.resource, []).append(span)
    return found


@given(times=stages(on_ipus=True), g=COUNT, updates=st.integers(1, 5), way=WAYS, training=st.booleans(), sync=CYCLES,
       every=st.booleans(), update=st.lists(CYCLES, min_size=5, max_size=5))  # fmt: skip
def test_each_row_is_filled_from_start_to_end(times, g, updates, way, training, sync, every, update) -> None:
    schedule = scheduled(
        times, g, updates=updates, execution=way, training=training, sync_cycles=sync, returns_all=every, update=update
    )
    for row in rows(schedule.timeline).values():
        assert row[0].start == 0.0
        for before, after in pairwise(row):
            assert after.start == pytest.approx(before.end)
        assert row[-1].end == pytest.approx(schedule.device_cycles / CLOCK)
    assert {span.kind for span in schedule.timeline} <= set(SPAN_KINDS) - {"load", "call"}


@given(times=stages(on_ipus=True), g=COUNT, updates=st.integers(1, 5), way=WAYS, update=st.lists(CYCLES, max_size=5))
def test_spans_of_a_kind_take_as_long_as_the_cycles_say(times, g, updates, way, update) -> None:
    schedule = scheduled(times, g, updates=updates, execution=way, update=update)
    by_row = rows(schedule.timeline)
    for ipu, cycles in enumerate(schedule.cycles):
        seconds: Counter[str] = Counter()
        for span in by_row.get(f"IPU {ipu}", []):
            seconds[span.kind] += span.seconds
        own = {kind: seconds[kind] * CLOCK for kind in SPAN_KINDS}
        working = own["forward"] + own["recompute"] + own["backward"] + own["update"]
        assert working == pytest.approx(cycles.busy)
        assert own["copy"] == pytest.approx(cycles.global_exchange)
        streams = cycles.stream_copy_begin + cycles.stream_copy_mid + cycles.stream_copy_end
        assert own["stream in"] + own["stream out"] == pytest.approx(streams)
        assert own["wait"] == pytest.approx(cycles.external_sync, abs=1e-6 * schedule.device_cycles)


@given(times=stages(), way=WAYS, training=st.booleans())
def test_its_length_does_not_grow_with_the_counts(times: list[Times], way: Execution, training: bool) -> None:
    lengths = {
        len(scheduled(times, g, updates=updates, execution=way, training=training, update=[1.0]).timeline)
        for g, updates in ((40, 3), (41, 1000), (100_000, 7))
    }
    assert len(lengths) == 1


def test_of_many_cycles_that_are_alike_one_is_drawn_and_then_the_others_together() -> None:
    spans = scheduled([Times(10, 20), Times(10, 20)], 20).timeline
    forward = [span for span in spans if span.resource == "IPU 0" and span.kind == "forward"]
    assert [(span.micro_batch, span.repeats) for span in forward] == [(0, 1), (1, 1), (2, 1), (None, 17)]
    assert forward[-1].seconds == pytest.approx(17 * 10 / CLOCK)
    assert forward[-1].label == "forward of stage 0, x 17 micro-batches"


@given(k=st.integers(1, 4), g=st.integers(1, 16))
def test_up_to_16_micro_batches_each_row_is_in_true_order(k: int, g: int) -> None:
    """Forward and backward passes alternate as the pipeline runs them, and no span stands for several."""
    spans = scheduled([Times(1, 2, 1)] * k, g).timeline
    assert {span.repeats for span in spans} == {1}
    for stage in range(k):
        own = [(s.kind, s.micro_batch) for s in spans if s.stage == stage and s.kind in ("forward", "backward")]
        # PopART's cycles: stage i runs the forward pass of micro-batch c - i and then the backward pass of micro-batch
        # c - 2 (k - 1) + i in cycle c.
        cycles = range(g + 2 * (k - 1))
        expected = [pair for c in cycles for pair in (("forward", c - stage), ("backward", c - 2 * (k - 1) + stage))]
        assert own == [(kind, m) for kind, m in expected if 0 <= m < g]


def test_later_updates_are_drawn_together() -> None:
    spans = scheduled([Times(10, 20), Times(10, 20)], 3, updates=50, update=[5, 5]).timeline
    updates = [span for span in spans if span.resource == "IPU 0" and span.kind == "update"]
    assert [(span.repeats, span.label) for span in updates] == [(1, "update"), (49, "update, x 49 updates")]


def test_passes_of_a_cycle_come_in_order() -> None:
    """Forward, then recomputation and backward pass of an older micro-batch (PopART's order within a cycle)."""
    spans = [s for s in scheduled([Times(1, 2, 1), Times(1, 2)], 3).timeline if s.resource == "IPU 0" and s.stage == 0]
    assert [(s.kind, s.micro_batch) for s in spans[2:5]] == [("forward", 2), ("recompute", 0), ("backward", 0)]
