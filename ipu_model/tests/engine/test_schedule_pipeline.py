"""Order and time of pipelines: closed forms, other ways to the same sum, and what may never happen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_oracles import plain_sum, without_barriers
from schedule_support import CLOCK, CYCLES, Times, conditions, scheduled, stages

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


class TestTime:
    @given(times=stages(on_ipus=True), g=COUNT)
    def test_grouped_cycles_add_up_to_the_plain_sum(self, times: list[Times], g: int) -> None:
        assert scheduled(times, g).device_cycles == pytest.approx(plain_sum(times, g))

    @given(times=stages(transfers=False), g=COUNT)
    def test_barriers_never_make_it_faster(self, times: list[Times], g: int) -> None:
        assert scheduled(times, g).device_cycles >= without_barriers(times, g) * (1 - 1e-12)

    @given(k=STAGES, g=COUNT, forward=CYCLES, backward=CYCLES)
    def test_equal_stages_work_without_waiting_for_barriers(
        self, k: int, g: int, forward: float, backward: float
    ) -> None:
        """(G + K - 1)(f + b): fill and flush cycles are cheaper than main cycles, K - 1 of them have forward only."""
        times = [Times(forward, backward)] * k
        expected = (g + k - 1) * (forward + backward)
        assert scheduled(times, g).device_cycles == pytest.approx(expected)
        assert without_barriers(times, g) == pytest.approx(expected)

    @given(k=STAGES, g=COUNT)
    def test_utilisation_is_between_the_bounds(self, k: int, g: int) -> None:
        """At least G / (G + 2(K-1)), which holds where every cycle takes as long as a main cycle; at most 1."""
        work, schedule = 3.0, scheduled([Times(1.0, 2.0)] * k, g)
        utilisation = g * work / schedule.device_cycles
        assert g / (g + 2 * (k - 1)) <= utilisation * (1 + 1e-12)
        assert utilisation <= 1 + 1e-12

    @given(k=STAGES, g=COUNT, size=CYCLES)
    def test_copies_run_in_every_cycle(self, k: int, g: int, size: float) -> None:
        times = [Times(on=size, back=size)] * k
        cycles = scheduled(times, g).cycles
        expected = (g + 2 * (k - 1)) * size if k > 1 else 0.0
        assert [ipu.global_exchange for ipu in cycles] == pytest.approx([expected] * k)

    @given(times=stages(transfers=False), g=COUNT, updates=COUNT, update=st.lists(CYCLES, min_size=5, max_size=5))
    def test_updates_follow_every_g_micro_batches(
        self, times: list[Times], g: int, updates: int, update: list[float]
    ) -> None:
        """IPUs update at the same time; each is followed by the next fill, so D iterations take D times as long."""
        one = scheduled(times, g).device_cycles + max(update)
        assert scheduled(times, g, updates=updates, update=update).device_cycles == pytest.approx(updates * one)

    def test_with_replicas_ipus_update_in_turn(self) -> None:
        schedule = scheduled([Times(), Times()], 3, update=(10, 20), in_turn=True)
        without = scheduled([Times(), Times()], 3)
        assert schedule.device_cycles == without.device_cycles + 30
        waits = [ipu.external_sync for ipu in without.cycles]
        assert [ipu.external_sync for ipu in schedule.cycles] == [waits[0] + 20, waits[1] + 10]

    @given(times=stages(transfers=False), g=COUNT)
    def test_sharded_stages_run_one_after_another(self, times: list[Times], g: int) -> None:
        expected = g * sum(t.forward + t.behind for t in times)
        assert scheduled(times, g, execution=Execution.SHARDED).device_cycles == pytest.approx(expected)

    @given(k=STAGES, g=COUNT, size=CYCLES)
    def test_sharded_copies_follow_one_another(self, k: int, g: int, size: float) -> None:
        """K - 1 boundaries, each crossed forward and backward by every micro-batch."""
        times = [Times(on=size, back=size)] * k
        schedule = scheduled(times, g, execution=Execution.SHARDED)
        assert schedule.device_cycles == pytest.approx(g * (2 * k + 2 * (k - 1) * size))

    @given(times=stages(most=1), g=COUNT)
    def test_one_stage_is_the_same_in_every_way(self, times: list[Times], g: int) -> None:
        assert len({scheduled(times, g, execution=way).device_cycles for way in Execution}) == 1

    @given(times=stages(transfers=False), g=COUNT)
    def test_inference_takes_the_slowest_active_stage_in_each_cycle(self, times: list[Times], g: int) -> None:
        k = len(times)
        cycles = [[times[s].forward for s in range(k) if s <= c < s + g] for c in range(g + k - 1)]
        assert scheduled(times, g, training=False).device_cycles == pytest.approx(sum(map(max, cycles)))


class TestInterleaved:
    """The what-if: half the stashes, at the price of a fast pass that waits for a slow one of its neighbour."""

    @given(k=st.integers(2, 6), g=COUNT, work=CYCLES)
    def test_equal_passes_take_as_long_as_in_a_pipeline(self, k: int, g: int, work: float) -> None:
        times = [Times(work, work)] * k
        interleaved = scheduled(times, g, execution=Execution.INTERLEAVED)
        assert interleaved.device_cycles == pytest.approx(scheduled(times, g).device_cycles)

    def test_equal_stages_with_slow_backward_passes_take_longer(self) -> None:
        """Each half cycle has a backward pass of 3 in it: 2 x 3 for a micro-batch instead of 1 + 3."""
        times = [Times(1.0, 3.0)] * 4
        for way, cycles in ((Execution.PIPELINED, 4.0), (Execution.INTERLEAVED, 6.0)):
            fewer, more = (scheduled(times, g, execution=way).device_cycles for g in (100, 101))
            assert more - fewer == cycles

    @given(times=stages(transfers=False))
    def test_one_more_micro_batch_never_takes_less_than_in_a_pipeline(self, times: list[Times]) -> None:
        per_micro_batch = {
            way: scheduled(times, 40, execution=way).device_cycles - scheduled(times, 39, execution=way).device_cycles
            for way in (Execution.PIPELINED, Execution.INTERLEAVED)
        }
        assert per_micro_batch[Execution.INTERLEAVED] >= per_micro_batch[Execution.PIPELINED] * (1 - 1e-9)


class TestLimit:
    def test_the_slowest_stage_is_on_the_busiest_ipu(self) -> None:
        """IPU 0 has stages 0 and 2 with 9 cycles together, IPU 1 one of 8."""
        times = [Times(2, 2, ipu=0), Times(4, 4, ipu=1), Times(2, 3, ipu=0)]
        assert scheduled(times, 100).limited_by == "stage 2"

    def test_large_boundaries_limit_a_pipeline(self) -> None:
        assert scheduled([Times(on=100), Times()], 100).limited_by == "inter-IPU copy"


class TestRules:
    """What must hold for any work."""

    @given(times=stages(), more=COUNT, update=CYCLES)
    def test_more_accumulation_never_lowers_throughput(self, times: list[Times], more: int, update: float) -> None:
        """From 2K - 1 micro-batches on, which PopTorch asks of a pipeline."""
        least = 2 * len(times) - 1
        few, many = (scheduled(times, g, update=[update]).device_cycles / g for g in (least, least + more))
        assert many <= few * (1 + 1e-9)

    @given(times=stages(), g=COUNT, way=WAYS, slower=st.floats(0.1, 1.0))
    def test_a_slower_clock_never_raises_throughput(
        self, times: list[Times], g: int, way: Execution, slower: float
    ) -> None:
        """Cycles take longer; transfers, which take seconds, do not."""
        plain = conditions()
        clock = CLOCK * slower
        chip = replace(plain.host.system.chip, clock_hz=clock)
        host = replace(plain.host, system=replace(plain.host.system, chip=chip))
        fast = scheduled(times, g, execution=way).device_cycles / CLOCK
        slow = scheduled(times, g, execution=way, host=host, clock_hz=clock).device_cycles / clock
        assert slow >= fast * (1 - 1e-9)
        assert slow <= fast / slower * (1 + 1e-9)

    @given(times=stages(on_ipus=True), g=COUNT, updates=st.integers(1, 4), way=WAYS, training=st.booleans(),
           update=st.lists(CYCLES, min_size=5, max_size=5), sync=CYCLES, every=st.booleans())  # fmt: skip
    def test_every_ipu_is_there_all_the_time(
        self, times, g: int, updates: int, way: Execution, training: bool, update: list[float], sync: float, every: bool
    ) -> None:
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
        assert sum(schedule.shares.values()) == pytest.approx(1.0)
        assert min(schedule.shares.values()) >= 0

    @given(times=stages(on_ipus=True), g=COUNT, updates=st.integers(1, 4), way=WAYS)
    def test_each_ipu_works_for_as_long_as_its_stages_take(
        self, times: list[Times], g: int, updates: int, way: Execution
    ) -> None:
        schedule = scheduled(times, g, updates=updates, execution=way)
        for ipu, cycles in enumerate(schedule.cycles):
            own = sum(t.forward + t.behind for t in times if t.ipu == ipu)
            assert cycles.on_tile_execute == pytest.approx(updates * g * own)
