"""Order and time of pipelines, against the plain sum over all their cycles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_support import CYCLES, Times, scheduled, stages

from ipu_model.predict.order import Beat, Shape, rounds_of
from ipu_model.predict.program import Execution

COUNT = st.integers(1, 12)
STAGES = st.integers(1, 6)
WAYS = st.sampled_from(list(Execution))
PIPELINES = st.sampled_from([Execution.PIPELINED, Execution.INTERLEAVED])


def beats_of(shape: Shape) -> Iterator[tuple[int, int, Beat]]:
    """Yield the beats of one round one by one, with the cycle and the number in it."""
    for interval in rounds_of(shape)[0].intervals:
        for cycle in range(interval.start, interval.start + interval.count):
            for number, beat in enumerate(interval.beats):
                yield cycle, number, beat


class TestOrder:
    """Which passes run in which cycle (hardware reference, section E)."""

    @given(k=STAGES, g=COUNT)
    def test_cycles_of_a_round(self, k: int, g: int) -> None:
        """G + 2 (K - 1) of an update, G + K - 1 in inference; 2 (G + K - 1) half cycles where passes alternate."""
        (update,), (call,) = rounds_of(Shape(k, g)), rounds_of(Shape(k, g, training=False))
        assert update.cycles == g + 2 * (k - 1)
        assert call.cycles == g + k - 1
        if k > 1:
            assert len(list(beats_of(Shape(k, g, execution=Execution.INTERLEAVED)))) == 2 * (g + k - 1)

    @given(k=STAGES, g=COUNT, way=WAYS, training=st.booleans())
    def test_every_stage_passes_every_micro_batch_once(self, k: int, g: int, way: Execution, training: bool) -> None:
        passes = []
        for cycle, _, beat in beats_of(Shape(k, g, training=training, execution=way)):
            passes += [("forward", stage, cycle - lag) for stage, lag in beat.forward.items()]
            passes += [("backward", stage, cycle - lag) for stage, lag in beat.backward.items()]
        kinds = ("forward", "backward") if training else ("forward",)
        assert sorted(passes) == sorted((kind, s, m) for kind in kinds for s in range(k) for m in range(g))

    @given(k=STAGES, g=COUNT, way=WAYS)
    def test_no_pass_runs_before_the_one_whose_results_it_needs(self, k: int, g: int, way: Execution) -> None:
        """In a later beat, or for the last stage later in the same one."""
        forward: dict[tuple[int, int], tuple[int, int]] = {}
        backward: dict[tuple[int, int], tuple[int, int]] = {}
        for cycle, number, beat in beats_of(Shape(k, g, execution=way)):
            forward |= {(s, cycle - lag): (cycle, number) for s, lag in beat.forward.items()}
            backward |= {(s, cycle - lag): (cycle, number) for s, lag in beat.backward.items()}
        for m in range(g):
            assert all(forward[s, m] < forward[s + 1, m] for s in range(k - 1))
            assert all(backward[s + 1, m] < backward[s, m] for s in range(k - 1))
            assert forward[k - 1, m] <= backward[k - 1, m]

    @given(k=st.integers(2, 6), g=st.integers(16, 40), way=PIPELINES)
    def test_micro_batches_under_way_fill_the_stashes(self, k: int, g: int, way: Execution) -> None:
        """2(K-1-s) + 1 of stage s in a pipeline, K - s where passes alternate (hardware reference, C3)."""
        under_way, most = [0] * k, [0] * k
        for _, _, beat in beats_of(Shape(k, g, execution=way)):
            for stage in beat.forward:
                under_way[stage] += 1
            most = [max(pair) for pair in zip(most, under_way)]
            for stage in beat.backward:
                under_way[stage] -= 1
        interleaved = way is Execution.INTERLEAVED
        assert most == [k - s if interleaved else 2 * (k - 1 - s) + 1 for s in range(k)]

    @given(k=STAGES, way=WAYS, training=st.booleans(), updates=st.integers(1, 1000))
    def test_what_there_is_to_time_does_not_grow_with_the_counts(
        self, k: int, way: Execution, training: bool, updates: int
    ) -> None:
        few, many = (
            [len(each.intervals) for each in rounds_of(Shape(k, g, updates, training, way))] for g in (32, 1_000_000)
        )
        assert few == many
        assert sum(many) <= 4 * k


# ------------------------------------------------------------------------------------ time


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


def plain_sum(times: Sequence[Times], g: int, way: Execution, training: bool) -> float:
    """Add up all cycles of an update one by one, in unit rates and without synchronisation.

    All IPUs wait for the one with most work. Copies of one direction of one pair of IPUs follow one another; all pairs
    and directions copy at once. The host refills buffers one after another; IPUs transfer and complete at once.
    """
    ipus, total = [time.ipu for time in times], 0.0
    for forward, backward, on, back in passes_of(len(times), g, way, training):
        work, copies = Counter[int | None](), Counter[tuple[int | None, int | None]]()
        into, out = Counter[int | None](), Counter[int | None]()
        for s in forward:
            work[ipus[s]] += times[s].forward
            into[ipus[s]] += times[s].inputs
            out[ipus[s]] += times[s].outputs
        for s in backward:
            work[ipus[s]] += times[s].behind
        for s in on:
            copies[ipus[s], ipus[s + 1]] += times[s].on
        for s in back:
            copies[ipus[s], ipus[s - 1]] += times[s].back
        total += max(work.values(), default=0.0) + max(copies.values(), default=0.0)
        total += sum(sum(moved.values()) + 2 * max(moved.values(), default=0.0) for moved in (into, out))
    return total


class TestTime:
    @settings(max_examples=200)
    @given(times=stages(on_ipus=True), g=COUNT, way=WAYS, training=st.booleans(), updates=st.integers(1, 4),
           update=st.lists(CYCLES, min_size=5, max_size=5))  # fmt: skip
    def test_cycles_add_up_to_the_plain_sum(self, times, g, way, training, updates, update) -> None:
        """Updates follow every G micro-batches, at the same time on all IPUs; in inference there are none."""
        schedule = scheduled(times, g, updates=updates, execution=way, training=training, update=update)
        more = max(update) if training else 0.0
        assert schedule.device_cycles == pytest.approx(updates * (plain_sum(times, g, way, training) + more))

    def test_with_replicas_ipus_update_in_turn(self) -> None:
        schedule = scheduled([Times(), Times()], 3, update=(10, 20), in_turn=True)
        without = scheduled([Times(), Times()], 3)
        assert schedule.device_cycles == without.device_cycles + 30
        waits = [ipu.external_sync for ipu in without.cycles]
        assert [ipu.external_sync for ipu in schedule.cycles] == [waits[0] + 20, waits[1] + 10]

    @given(times=stages(transfers=False))
    def test_one_more_micro_batch_never_takes_less_where_passes_alternate(self, times: list[Times]) -> None:
        """The what-if has half the stashes, at the price of a fast pass that waits for a slow one of its neighbour."""
        more, fewer = (
            [scheduled(times, g, execution=way).device_cycles for way in (Execution.PIPELINED, Execution.INTERLEAVED)]
            for g in (40, 39)
        )
        pipelined, interleaved = (after - before for after, before in zip(more, fewer))
        assert interleaved >= pipelined * (1 - 1e-9)

    @given(times=stages(on_ipus=True), g=COUNT, updates=st.integers(1, 4), way=WAYS, training=st.booleans(),
           update=st.lists(CYCLES, min_size=5, max_size=5), sync=CYCLES, every=st.booleans())  # fmt: skip
    def test_every_ipu_is_there_all_the_time(self, times, g, updates, way, training, update, sync, every) -> None:
        """It works for as long as its stages and its update take, and copies, transfers or waits otherwise."""
        schedule = scheduled(
            times,
            g,
            updates=updates,
            execution=way,
            training=training,
            update=update,
            sync_cycles=sync,
            returns_all=every,
        )
        assert [ipu.total for ipu in schedule.cycles] == pytest.approx([schedule.device_cycles] * len(schedule.cycles))
        for ipu, cycles in enumerate(schedule.cycles):
            passes = sum(t.forward + (t.behind if training else 0.0) for t in times if t.ipu == ipu)
            own = g * passes + (update[ipu] if training else 0.0)
            assert cycles.on_tile_execute == pytest.approx(updates * own)
        assert sum(schedule.shares.values()) == pytest.approx(1.0)
        assert min(schedule.shares.values()) >= 0

    @pytest.mark.parametrize(
        ("times", "limit"),
        [
            # IPU 0 has stages 0 and 2 with 9 cycles together, IPU 1 one of 8.
            ([Times(2, 2, ipu=0), Times(4, 4, ipu=1), Times(2, 3, ipu=0)], "stage 2"),
            ([Times(on=100), Times()], "inter-IPU copy"),
        ],
    )
    def test_what_limits_a_pipeline(self, times: list[Times], limit: str) -> None:
        assert scheduled(times, 100).limited_by == limit
