"""Order and time of pipelines, their transfers and timelines, of work made up of plain numbers.

Rates make cycles of bytes: at 1 GHz, a transfer of b bytes takes b cycles of each of its three phases, and
synchronising takes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_model.predict.calibration import StreamConstants, calibrated
from ipu_model.predict.hardware import system_named
from ipu_model.predict.links import HostLink
from ipu_model.predict.order import rounds_of
from ipu_model.predict.profile import SPAN_KINDS, PhaseCycles, Span
from ipu_model.predict.program import Execution
from ipu_model.predict.time import Call, Conditions, DeviceTime
from ipu_model.predict.work import StageWork, Workload

M2000 = system_named("M2000")
CLOCK = 1e9
UNIT_RATES = StreamConstants(1e9, 1e9, 1e9, 0.0)
# Its link to the host is one that no number of IPUs fills.
HOST = HostLink(
    replace(
        M2000, chip=replace(M2000.chip, clock_hz=CLOCK), host_to_device_bytes_per_second=1e15,
        device_to_host_bytes_per_second=1e15,
    ),
    UNIT_RATES,
)  # fmt: skip
PLAIN = Conditions(HOST, copy_bytes_per_second=1e9, sync_cycles=0.0, clock_hz=CLOCK, returns_all=True)
CYCLES = st.integers(0, 1000).map(float)
UPDATE = st.lists(CYCLES, min_size=5, max_size=5)
COUNT = st.integers(1, 12)
STAGES = st.integers(1, 6)
WAYS = st.sampled_from(list(Execution))
PIPELINES = st.sampled_from([Execution.PIPELINED, Execution.INTERLEAVED])


def stage(
    forward: float = 1.0, backward: float = 1.0, recompute: float = 0.0, ipu: int = -1, **moved: float
) -> StageWork:
    """Return one stage, on an IPU of its own unless said otherwise: cycles of its passes, and what it transfers."""
    return StageWork(0, ipu, *(PhaseCycles(on_tile_execute=c) for c in (forward, recompute, backward)), **moved)


def scheduled(stages: Sequence[StageWork], micro_batches: int, *, updates: int = 1, training: bool = True,
              execution: Execution = Execution.PIPELINED, update: Sequence[float] = (), overlaps: bool = False,
              in_turn: bool = False, **changes: Any) -> DeviceTime:  # fmt: skip
    """Return the schedule of such stages; `update` has the cycles of each IPU."""
    works = tuple(replace(s, index=k, ipu=k if s.ipu < 0 else s.ipu) for k, s in enumerate(stages))
    ipus = max(len(update), *(stage.ipu + 1 for stage in works))
    of_ipus = {ipu: PhaseCycles(on_tile_execute=cycles) for ipu, cycles in enumerate(update)}
    work = Workload(works, of_ipus, ipus, updates_in_turn=in_turn)
    how = {"training": training, "execution": execution, "overlaps": overlaps}
    rounds = rounds_of(len(works), micro_batches, updates, **how)
    return DeviceTime(Call(work, rounds, replace(PLAIN, **changes), training=training))


WORK, MOVED = CYCLES.map(lambda cycles: cycles + 1), dict.fromkeys(("inputs", "outputs", "on", "back"), CYCLES)
# Stages with IPUs of their own, or several on one, as a pipeline that comes back to an IPU has them.
APART, SHARED = (
    st.lists(st.builds(stage, WORK, WORK, CYCLES, ipus, **MOVED), min_size=1, max_size=5)
    for ipus in (st.just(-1), st.integers(0, 4))
)


# --- time, and with it which passes run in which cycle


def passes_of(
    k: int, g: int, way: Execution, training: bool
) -> Iterator[tuple[list[int], list[int], list[int], list[int]]]:
    """Yield what happens between two synchronisations of K stages, from the rules alone (hardware reference, E).

    The stages that run a forward pass, those that run a backward pass, those that send on, and those that send back.
    """
    last = k - 1
    if way is Execution.SHARDED or k == 1:
        for _ in range(g):
            yield from (([s], [], [s], []) for s in range(last))
            yield ([last], [last], [], [last][:last]) if training else ([last], [], [], [])
            yield from (([], [s], [], [s][:s]) for s in reversed(range(last)) if training)
    elif way is Execution.INTERLEAVED and training:
        for half in range(2 * (g + last)):
            forward = [s for s in range(k) if (half - s) % 2 == 0 and 0 <= half - s < 2 * g]
            backward = [s for s in range(k) if (half - 2 * k + 1 + s) % 2 == 0 and 0 <= half - 2 * k + 1 + s < 2 * g]
            on, back = [s for s in range(last) if (half - s) % 2 == 0], [s for s in range(1, k) if (half - s) % 2]
            yield forward, backward, on, back
    else:
        for cycle in range(g + (2 * last if training else last)):
            forward = [s for s in range(k) if s <= cycle < s + g]
            backward = [s for s in range(k) if training and 2 * last - s <= cycle < 2 * last - s + g]
            yield forward, backward, list(range(last)), list(range(1, k)) if training else []


def plain_sum(stages: Sequence[StageWork], g: int, way: Execution, training: bool) -> float:
    """Add up all cycles of an update one by one, in unit rates and without synchronisation.

    All IPUs wait for the one with most work. Copies of one direction of one pair of IPUs follow one another; all pairs
    and directions copy at once. The host refills buffers one after another; IPUs transfer and complete at once.
    """
    ipus, total = [stage.ipu for stage in stages], 0.0
    for forward, backward, on, back in passes_of(len(stages), g, way, training):
        work, copies, into, out = (Counter[Any]() for _ in range(4))
        for s in forward:
            work[ipus[s]] += stages[s].forward.total
            into[ipus[s]] += stages[s].inputs
            out[ipus[s]] += stages[s].outputs
        for s in backward:
            work[ipus[s]] += stages[s].recompute.total + stages[s].backward.total
        for s in on:
            copies[ipus[s], ipus[s + 1]] += stages[s].on
        for s in back:
            copies[ipus[s], ipus[s - 1]] += stages[s].back
        total += max(work.values(), default=0.0) + max(copies.values(), default=0.0)
        total += sum(sum(moved.values()) + 2 * max(moved.values(), default=0.0) for moved in (into, out))
    return total


class TestTime:
    @settings(max_examples=200)
    @given(stages=SHARED, g=COUNT, way=WAYS, training=st.booleans(), updates=st.integers(1, 4),
           update=UPDATE)  # fmt: skip
    def test_cycles_add_up_to_the_plain_sum(self, stages, g, way, training, updates, update) -> None:
        """Updates follow every G micro-batches, at the same time on all IPUs; in inference there are none."""
        schedule = scheduled(stages, g, updates=updates, execution=way, training=training, update=update)
        more = max(update) if training else 0.0
        assert schedule.device_cycles == pytest.approx(updates * (plain_sum(stages, g, way, training) + more))

    def test_with_replicas_ipus_update_in_turn(self) -> None:
        schedule = scheduled([stage(), stage()], 3, update=(10, 20), in_turn=True)
        without = scheduled([stage(), stage()], 3)
        assert schedule.device_cycles == without.device_cycles + 30
        waits = [ipu.external_sync for ipu in without.cycles]
        assert [ipu.external_sync for ipu in schedule.cycles] == [waits[0] + 20, waits[1] + 10]

    @given(stages=SHARED, g=COUNT, updates=st.integers(1, 4), way=WAYS, training=st.booleans(),
           update=UPDATE, sync=CYCLES, every=st.booleans(), sends=st.booleans())  # fmt: skip
    def test_every_ipu_is_there_all_the_time(self, stages, g, updates, way, training, update, sync, every, sends):
        """It works for as long as its stages and its update take, and copies, transfers or waits otherwise.

        The timeline says the same: each row is filled from start to end, and spans of a kind take as long as the cycles
        say. In unit rates, an IPU's cycles of transfer are its stages' bytes of every micro-batch; none if synthetic.
        """
        schedule = scheduled(
            stages, g, updates=updates, execution=way, training=training, update=update, sync_cycles=sync,
            returns_all=every, sends_data=sends,
        )  # fmt: skip
        assert sum(schedule.shares.values()) == pytest.approx(1.0)
        assert min(schedule.shares.values()) >= 0
        assert {span.kind for span in schedule.timeline} <= set(SPAN_KINDS) - {"load", "call"}
        for ipu, cycles in enumerate(schedule.cycles):
            here = [stage for stage in stages if stage.ipu == ipu]
            assert cycles.total == pytest.approx(schedule.device_cycles)
            passes = sum(stage.total if training else stage.forward.total for stage in here)
            own = g * passes + (update[ipu] if training else 0.0)
            assert cycles.on_tile_execute == pytest.approx(updates * own)
            streams = cycles.stream_copy_begin + cycles.stream_copy_mid + cycles.stream_copy_end
            assert sends or streams == 0
            if every:
                moved = updates * g * sum(stage.inputs + stage.outputs for stage in here)
                assert cycles.stream_copy_mid == pytest.approx(moved * sends)
            row = rows(schedule).get(f"IPU {ipu}", [])
            if row:
                assert row[0].start == 0.0
                assert row[-1].end == pytest.approx(schedule.device_cycles / CLOCK)
            for before, after in pairwise(row):
                assert after.start == pytest.approx(before.end)
            drawn: Counter[str] = Counter()
            for span in row:
                drawn[span.kind] += span.seconds * CLOCK
            working = drawn["forward"] + drawn["recompute"] + drawn["backward"] + drawn["update"]
            assert working == pytest.approx(cycles.busy)
            assert drawn["copy"] == pytest.approx(cycles.global_exchange)
            assert drawn["stream in"] + drawn["stream out"] == pytest.approx(streams)
            waited = cycles.external_sync + cycles.internal_sync
            assert drawn["wait"] == pytest.approx(waited, abs=1e-6 * schedule.device_cycles)

    @pytest.mark.parametrize(
        ("stages", "limit"),
        [
            # IPU 0 has stages 0 and 2 with 9 cycles together, IPU 1 one of 8.
            ([stage(2, 2, ipu=0), stage(4, 4, ipu=1), stage(2, 3, ipu=0)], "stage 2"),
            ([stage(on=100), stage()], "inter-IPU copy"),
        ],
    )
    def test_what_limits_a_pipeline(self, stages: list[StageWork], limit: str) -> None:
        assert scheduled(stages, 100).limited_by == limit


# --- the timeline, which is short whatever is repeated


def rows(schedule: DeviceTime) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in schedule.timeline:
        found.setdefault(span.resource, []).append(span)
    return found


class TestTimeline:
    @given(stages=APART, way=WAYS, training=st.booleans())
    def test_its_length_does_not_grow_with_the_counts(
        self, stages: list[StageWork], way: Execution, training: bool
    ) -> None:
        lengths = {
            len(scheduled(stages, g, updates=updates, execution=way, training=training, update=[1.0]).timeline)
            for g, updates in ((40, 3), (41, 1000), (100_000, 7))
        }
        assert len(lengths) == 1

    def test_of_what_is_alike_one_is_drawn_and_then_the_others_together(self) -> None:
        stages = [stage(10, 20), stage(10, 20)]
        forward = [span for span in rows(scheduled(stages, 20))["IPU 0"] if span.kind == "forward"]
        assert [(span.micro_batch, span.repeats) for span in forward] == [(0, 1), (1, 1), (2, 1), (None, 17)]
        assert forward[-1].seconds == pytest.approx(17 * 10 / CLOCK)
        assert forward[-1].label == "forward of stage 0, x 17 micro-batches"
        fifty = rows(scheduled(stages, 3, updates=50, update=[5, 5]))["IPU 0"]
        updates = [span for span in fifty if span.kind == "update"]
        assert [(span.repeats, span.label) for span in updates] == [(1, "update"), (49, "update, x 49 updates")]
        passes = [span for span in fifty if span.kind == "backward"]
        assert [span.micro_batch for span in passes] == [0, 1, 2, None]
        assert (passes[-1].repeats, passes[-1].label) == (147, "backward of stage 0, x 147 micro-batches")
        assert passes[-1].seconds == pytest.approx(147 * 20 / CLOCK)

    # A pipeline of two has g + 2 cycles an update. Of long calls, two updates are drawn alike; of three, the first is.
    @pytest.mark.parametrize(
        ("g", "updates", "drawn"),
        [
            (8, 2, [(m, 1) for m in range(16)]),
            (14, 3, [(m, 1) for m in range(42)]),
            (15, 3, [*((m, 1) for m in range(15)), (None, 30)]),
            (20, 2, [*((m, 1) for m in range(3)), (None, 17), *((m, 1) for m in range(20, 23)), (None, 17)]),
        ],
    )
    def test_micro_batches_of_several_updates_are_numbered_on(self, g: int, updates: int, drawn: list[Any]) -> None:
        found = rows(scheduled([stage(10, 20), stage(10, 20)], g, updates=updates, update=[5, 5]))
        forward = {name: [span for span in row if span.kind == "forward"] for name, row in found.items()}
        assert [(span.micro_batch, span.repeats) for span in forward["IPU 0"]] == drawn
        for spans in forward.values():
            assert sum(span.repeats for span in spans) == g * updates
            assert {round(span.seconds / span.repeats * CLOCK, 6) for span in spans} == {10.0}

    @given(k=st.integers(1, 4), g=st.integers(1, 16))
    def test_up_to_16_micro_batches_each_row_is_in_true_order(self, k: int, g: int) -> None:
        """PopART's cycles: stage i runs the forward pass of micro-batch c - i in cycle c, and then the backward pass of
        micro-batch c - 2 (k - 1) + i, with its recomputation. No span stands for several."""
        spans = scheduled([stage(1, 2, 1)] * k, g).timeline
        assert {span.repeats for span in spans} == {1}
        for index in range(k):
            kinds = ("forward", "recompute", "backward")
            own = [(s.kind, s.micro_batch) for s in spans if s.stage == index and s.kind in kinds]
            expected = [
                (kind, c - (index if kind == "forward" else 2 * (k - 1) - index))
                for c in range(g + 2 * (k - 1))
                for kind in kinds
            ]
            assert own == [(kind, m) for kind, m in expected if 0 <= m < g]


# --- transfers with the host

LINK = HostLink(M2000, calibrated().stream)


def into(link: HostLink, bytes_by_ipu: dict[int, float]) -> PhaseCycles:
    return link.transfer(bytes_by_ipu, to_device=True)[0]


class TestRates:
    @pytest.mark.parametrize("ipus", [1, 2, 4])
    def test_the_machines_link_bounds_ipus_that_transfer_at_once(self, ipus: int) -> None:
        """published/other.md, M4: 14.55 GB/s into an M2000, 6.33 GB/s out of it; one IPU reaches 4.89 GB/s alone."""
        size = 1e6
        for to_device, shared in ((True, 14.55e9), (False, 6.33e9)):
            mid = LINK.transfer(dict.fromkeys(range(ipus), size), to_device=to_device)[0].stream_copy_mid
            assert M2000.chip.seconds(mid) == pytest.approx(max(size / 4.888e9, ipus * size / shared))

    def test_each_machine_has_a_link_of_its_own_which_replicas_on_it_share(self) -> None:
        shared = replace(LINK, replicas_per_machine=4)
        for link, ipus, seconds in (
            (LINK, (0, 1, 2, 3), 4e6 / 14.55e9), (LINK, (0, 1, 4, 5), 1e6 / 4.888e9), (shared, (0,), 4e6 / 14.55e9),
        ):  # fmt: skip
            assert into(link, dict.fromkeys(ipus, 1e6)).stream_copy_mid == pytest.approx(1.33e9 * seconds)


class TestWhen:
    @given(size=CYCLES, g=COUNT, updates=COUNT, results=st.integers(1, 5))
    def test_results_that_come_back_now_and_then(self, size: float, g: int, updates: int, results: int) -> None:
        stages = [stage(), stage(outputs=size)]
        schedule = scheduled(stages, g, updates=updates, returns_all=False, returned=results)
        assert schedule.cycles[1].stream_copy_mid == pytest.approx(results * size)
        nothing = scheduled(stages, g, updates=updates, sends_data=False).device_cycles
        assert schedule.device_cycles == pytest.approx(nothing + 3 * results * size)

    def test_the_device_waits_once_for_the_start_of_a_run(self) -> None:
        """day03-resnet101: 643,335 cycles of stream copies that do not grow with accumulation."""
        host = HostLink(M2000, replace(UNIT_RATES, run_wait_seconds=calibrated().stream.run_wait_seconds))
        once, often = (scheduled([stage()], 3, updates=d, host=host, clock_hz=1.33e9) for d in (1, 10))
        assert once.device_cycles == pytest.approx(643_335 + 3 * 2, rel=1e-3)
        assert often.device_cycles - once.device_cycles == pytest.approx(9 * 3 * 2)

    # A pipeline of two has 3 + 2 copies, and a transfer in 4 cycles: either stage has an input. Inference: 4 and 4.
    @pytest.mark.parametrize(("training", "points"), [(True, 5 + 4), (False, 4 + 4)])
    def test_all_ipus_synchronise_before_transfers_and_copies(self, training: bool, points: int) -> None:
        stages = [stage(inputs=1.0, on=1.0), stage(inputs=1.0)]
        with_sync, without = (scheduled(stages, 3, training=training, sync_cycles=sync) for sync in (600.0, 0.0))
        assert with_sync.device_cycles - without.device_cycles == pytest.approx(600 * points)


@pytest.mark.parametrize(
    ("depth", "shown"),
    [
        # Refills of 100 cycles for each replica. Without a buffer ahead the host starts when it is asked, and
        # serves one replica after another.
        (0, {1: 100, 3: 3 * 100}),
        # With one, the refills for the other replicas hide behind 202 cycles of transfer and work.
        (1, {1: 100, 2: 100, 3: 100, 4: 100 + 300 - 202, 8: 100 + 700 - 202}),
        # With more, all of them do; but no depth helps a host that is too slow.
        (2, {1: 0, 3: 300 - 202}),
        (4, {8: 800 - 202}),
    ],
)
def test_what_shows_of_the_refills(depth: int, shown: dict[int, float]) -> None:
    """By the replicas of the process."""
    for replicas, cycles in shown.items():
        host = replace(HOST, replicas_per_process=replicas)
        schedule = scheduled([stage(inputs=100.0)], 5, host=host, prefetch_depth=depth)
        assert schedule.cycles[0].stream_copy_begin == pytest.approx(5 * cycles)


def overlapped(only: StageWork, n: int, *, inputs: bool = True, outputs: bool = False, **changes: Any) -> DeviceTime:
    changes |= {"overlaps_input": inputs, "overlaps_output": outputs}
    return scheduled([only], n, execution=Execution.SHARDED, overlaps=True, **changes)


class TestOverlap:
    """Transfers beside the work: N iterations overlap N - 2 of them (hardware reference, section D)."""

    @given(work=CYCLES, inputs=CYCLES, outputs=CYCLES, n=st.integers(3, 50))
    def test_all_but_the_first_and_last_are_hidden_as_far_as_there_is_work(self, work, inputs, outputs, n) -> None:
        schedule = overlapped(stage(work, work, inputs=inputs, outputs=outputs), n, outputs=True)
        transfers = 3 * (inputs + outputs)
        expected = 2 * (2 * work + transfers) + (n - 2) * max(2 * work, transfers)
        assert schedule.device_cycles == pytest.approx(expected)
        # The other cycles of a row are all there.
        end = max((span.end for span in schedule.timeline), default=0.0)
        assert end == pytest.approx(schedule.device_cycles / CLOCK)
        assert schedule.cycles[0].total == pytest.approx(schedule.device_cycles)

    @pytest.mark.parametrize(
        ("only", "cycles"),
        [
            # Inputs of 300 hide behind the work; results do not overlap.
            (stage(500, 500, inputs=100, outputs=10), 10 * (1000 + 30) + 2 * 300),
            # Transfers of the other direction hide them too: beside 20 of work and 150 of results, 130 are left.
            (stage(10, 10, inputs=100, outputs=50), 10 * (20 + 150) + 2 * 300 + 8 * 130),
        ],
    )
    def test_one_direction_only(self, only: StageWork, cycles: float) -> None:
        assert overlapped(only, 10).device_cycles == pytest.approx(cycles)

    @pytest.mark.parametrize(("updates", "hidden"), [(1, 0), (2, 0), (3, 1), (100, 98)])
    def test_without_accumulation_device_iterations_overlap(self, updates: int, hidden: int) -> None:
        schedule = overlapped(stage(500, 500, inputs=100), 1, updates=updates, update=[50])
        assert schedule.device_cycles == pytest.approx(updates * 1350 - hidden * 300)
