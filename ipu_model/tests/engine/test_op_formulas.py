"""Ops made of vector vertices: how many passes, reductions and exchanges each is (hardware reference, B5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hand_written import tensor, work_of
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.predict import vertices
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.device import CostSettings, Cycles, Device, Element, Work
from ipu_model.predict.ops import indexing, moves, normalisation, pointwise, reductions, updates
from ipu_model.predict.ops.normalisation import Normalised
from ipu_model.predict.ops.updates import Updated
from ipu_model.step import FLOAT32, INT32, UINT8

GC200 = Device()
HALF, FLOAT = Element.HALF, Element.FLOAT
FIXED = GC200.constants.exchange_fixed_cycles
# 600 elements on each tile: 100 for each of six workers, 25 vectors of fp16.
SPREAD = (1472, 600)


class TestExchange:
    def test_four_bytes_a_cycle_and_a_fixed_part(self) -> None:
        assert GC200.exchange(4000, phases=2) == Cycles(exchange=1000 + 2 * FIXED, phases=2)

    def test_total_counts_synchronisation(self) -> None:
        assert GC200.total(Cycles(10, 20, 3)) == 10 + 20 + 3 * GC200.sync_cycles


class TestElementwise:
    def test_operands_that_lie_elsewhere_are_exchanged(self) -> None:
        here = pointwise.pointwise(GC200, 600, HALF, ("add",), operands=2)
        there = pointwise.pointwise(GC200, 600, HALF, ("add",), operands=2, moved=1)
        assert here.cycles.phases == 0
        assert there.cycles == here.cycles + GC200.exchange(1200)
        assert there.temporary_bytes == 1200

    def test_rectifier_in_place_by_hand(self) -> None:
        assert work_of("relu", SPREAD, SPREAD).cycles == Cycles(compute=9 + 6 * (20 + 2 * 25))

    def test_rectifier_gradient_by_hand(self) -> None:
        work = work_of("threshold_backward", SPREAD, SPREAD, SPREAD)
        assert work.cycles == Cycles(compute=9 + 6 * (29 + 3 * 25)) + GC200.exchange(1200)

    def test_a_root_is_slower_than_a_sum_and_a_sine_much_slower(self) -> None:
        ops = [(op,) for op in ("add", "sqrt", "power", "sine")]
        cycles = [pointwise.pointwise(GC200, 6000, FLOAT, op).cycles.compute for op in ops]
        assert cycles == sorted(cycles)
        assert cycles[-1] > 100 * cycles[0]


class TestReductions:
    def test_one_tile_needs_no_exchange(self) -> None:
        assert reductions.reduced(GC200, 64, 64, 1, HALF).cycles.phases == 0

    @pytest.mark.parametrize(("depth", "stages"), [(2, 1), (16, 1), (17, 2), (125, 2), (126, 3), (1472, 3)])
    def test_stages_bound_the_number_of_messages(self, depth: int, stages: int) -> None:
        assert reductions.combined(GC200, 8, depth).phases >= stages

    @given(st.integers(1, 10**5), st.sampled_from([1, 10, 1000]))
    def test_longer_rows_are_never_faster(self, length: int, rows: int) -> None:
        def cycles(count: int) -> float:
            work = reductions.reduced(GC200, rows * count, GC200.spread(rows * count, HALF), rows, HALF)
            return GC200.total(work.cycles)

        # But for rounding: partial sums over more tiles can happen to divide better.
        assert cycles(length * 4) >= cycles(length) * 0.95


class TestNorms:
    NORM = Normalised(elements=64 * 64 * 256, n=800, statistics=64, element=HALF)

    def test_forward_is_four_passes_and_two_reductions(self) -> None:
        whole = 4 * vertices.broadcast_vector(GC200, 800, HALF) + 2 * vertices.reduce_rows(GC200, 800, HALF)
        work = normalisation.forward(GC200, self.NORM)
        small = GC200.constants.least_bytes_per_tile / 2
        once = 4 * vertices.broadcast_vector(GC200, small, HALF)
        assert whole + once < work.cycles.compute < whole + once + 2000

    def test_inference_is_two_passes(self) -> None:
        work = normalisation.inference(GC200, self.NORM)
        small = 2 * vertices.broadcast_vector(GC200, 64, HALF)
        assert work.cycles == Cycles(compute=2 * vertices.broadcast_vector(GC200, 800, HALF) + small)

    def test_backward_is_more_than_two_forwards(self) -> None:
        # Eight elements take 2 thread cycles in a pass and 5 in a reduction: 10 and 4 of them against 4 and 2.
        large = replace(self.NORM, n=20000, elements=20000 * 1472)
        forward, backward = normalisation.forward(GC200, large), normalisation.backward(GC200, large)
        expected = (10 * 2 + 4 * 5) / (4 * 2 + 2 * 5)
        assert backward.cycles.compute / forward.cycles.compute == pytest.approx(expected, rel=0.02)

    def test_values_for_rows_take_longer_than_values_for_channels(self) -> None:
        # A value for each row of eight channels is loaded once for two vectors, that of a channel once for all rows.
        of_rows = normalisation.forward(GC200, replace(self.NORM, by_row=True))
        assert of_rows.cycles.compute > 1.1 * normalisation.forward(GC200, self.NORM).cycles.compute

    def test_a_stable_norm_reduces_twice(self) -> None:
        plain = normalisation.forward(GC200, self.NORM)
        stable = normalisation.forward(GC200, replace(self.NORM, stable=True))
        assert stable.cycles.compute > plain.cycles.compute
        assert stable.cycles.phases > plain.cycles.phases


class TestPools:
    """Windows of 3 x 3: 600 results and 2,400 inputs on each tile."""

    LARGE = (1, 1472, 60, 40)
    SMALL = (1, 1472, 30, 20)

    def test_forward_by_hand(self) -> None:
        work = work_of("avg_pool2d", self.SMALL, self.LARGE, arguments=((3, 3),))
        assert work.cycles.compute == pytest.approx(7 + 6 * (60 + 1.1 * 27 * 25))
        assert work.cycles.exchange == GC200.exchange(4800, phases=2).exchange
        assert (work.cycles.phases, work.temporary_bytes) == (2, 4800)

    @pytest.mark.parametrize(
        ("kind", "per_vector", "read", "phases"),
        # A maximum compares inputs and outputs again.
        [("avg_pool2d_backward", 3, 600, 2), ("max_pool2d_with_indices_backward", 5, 2 * 600 + 2400, 3)],
    )
    def test_gradients_by_hand(self, kind: str, per_vector: int, read: int, phases: int) -> None:
        work = work_of(kind, self.LARGE, self.SMALL, self.LARGE, arguments=((3, 3),))
        filled = vertices.fill(GC200, 2400, HALF)
        assert work.cycles.compute == pytest.approx(7 + 6 * (60 + 1.1 * per_vector * 9 * 25) + filled)
        assert work.cycles.exchange == GC200.exchange(2 * read, phases).exchange
        assert (work.cycles.phases, work.temporary_bytes) == (phases, 2 * read)


class TestSoftmaxAndLosses:
    def test_softmax_costs_more_than_its_exponential(self) -> None:
        work = work_of("_softmax", (64, 1000), (64, 1000), arguments=(1,))
        assert work.cycles.compute > vertices.elementwise(GC200, 64, HALF, ("exp",), vertices.UNARY)
        assert work.outputs_on_busiest_tile == 64

    def test_the_loss_of_a_small_classifier_takes_microseconds(self) -> None:
        """Section 1.2 of the feasibility note: about 12 k cycles for softmax, loss and accuracy."""
        logits, labels = (64, 1000), tensor("labels", 64, dtype=INT32)
        parts = (
            work_of("_log_softmax", logits, logits, arguments=(1,)),
            work_of("nll_loss_forward", (), logits, labels),
            work_of("nll_loss_backward", logits, (), logits, labels),
            work_of("_log_softmax_backward_data", logits, logits, logits, arguments=(1,)),
            reductions.arg_reduced(GC200, 64, 64),
        )
        assert 4000 < sum(GC200.total(work.cycles) for work in parts) < 20000


class TestEmbeddings:
    def test_one_row_looked_up_six_times_on_every_tile_by_hand(self) -> None:
        """A row of four fp16 elements is one vector, and once for each worker: 30 + 19 + 2 thread cycles.

        A tile receives six indices, and the row unless it holds it. A gradient also collects six results in two phases,
        and fills the table: 26 + 1.
        """
        picked, added = (f(GC200, 1, 4, 6 * 1472, HALF) for f in (indexing.gather, indexing.scatter))
        row = 4 * 2 * (1 - 1 / 1472)
        assert picked.cycles.compute == 6 * (30 + 19 + 2)
        assert picked.cycles.exchange == pytest.approx(6 + row / 4 + 2 * FIXED)
        assert added.cycles.compute == picked.cycles.compute + 6 * (26 + 1)
        assert added.cycles.exchange == pytest.approx(6 + (row + 6 * 4 * 2) / 4 + 3 * FIXED)
        assert (picked.temporary_bytes, picked.outputs_on_busiest_tile) == ((24 + 4) * 2, 24)
        assert added.outputs_on_busiest_tile == 4

    def test_more_lookups_take_longer(self) -> None:
        few, many = (indexing.gather(GC200, 30000, 768, n, HALF).cycles for n in (128, 8192))
        assert GC200.total(few) < GC200.total(many)

    def test_a_gradient_fills_the_table_first(self) -> None:
        gather = indexing.gather(GC200, 30000, 768, 128, HALF)
        scatter = indexing.scatter(GC200, 30000, 768, 128, HALF)
        assert scatter.cycles.compute > gather.cycles.compute
        assert scatter.outputs_on_busiest_tile == GC200.spread(30000 * 768, HALF)

    def test_sorting_takes_more_than_finding_the_largest(self) -> None:
        ordered = reductions.ordered(GC200, 64000, 64, 64, HALF)
        assert GC200.total(ordered.cycles) > GC200.total(reductions.arg_reduced(GC200, 64, 64).cycles)


class TestCopies:
    def test_a_rearrangement_moves_everything_in_blocks(self) -> None:
        turned = replace(tensor("x", *SPREAD), stride=(1, 1472))
        rearranged = work_of("clone", SPREAD, turned)
        assert rearranged.cycles == Cycles(compute=vertices.layout_copy(GC200, 1200, 2)) + GC200.exchange(1200)
        assert work_of("clone", SPREAD, SPREAD).cycles == moves.copied(GC200, 600, HALF).cycles
        assert GC200.total(rearranged.cycles) > GC200.total(moves.copied(GC200, 600, HALF).cycles)

    def test_casts_between_floating_types_have_a_vertex(self) -> None:
        assert work_of("_to_copy", SPREAD, SPREAD, dtype=FLOAT32).cycles.compute == vertices.cast(GC200, 600)
        # A byte at a time: 100 for each worker, five cycles each.
        single = work_of("_to_copy", SPREAD, tensor("bytes", *SPREAD, dtype=UINT8))
        assert single.cycles.compute == 12 + 6 * (37 + 5 * 100)

    def test_a_call_of_the_host_waits_once_and_moves_bytes_both_ways(self) -> None:
        """4 MB at 4 GB/s is a millisecond, its completion 0.16 ms; 8 MB back are 2 ms and 0.4 ms of copying."""
        rates = {"ipu_bytes_per_second": 4e9, "refill_bytes_per_second": 2e10, "completion_bytes_per_second": 2.5e10}
        stream = {f"stream.{name}": value for name, value in {**rates, "run_wait_seconds": 5e-4}.items()}
        settings = CostSettings(Device(calibration=calibrated().with_values(stream)))
        work = work_of("host_call", (4000, 1000), (2000, 1000), settings=settings)
        assert GC200.chip.seconds(GC200.total(work.cycles)) == pytest.approx(0.5e-3 + 1.16e-3 + 2.4e-3)


class TestUpdates:
    TENSOR = Updated(elements=1472 * 600, weight=HALF, accumulator=HALF)

    def test_accumulation_by_hand(self) -> None:
        work = updates.accumulate(GC200, self.TENSOR)
        assert work.cycles == Cycles(compute=57 + 6 * (24 + 2 * 25)) + GC200.exchange(1200)

    def test_accumulation_in_fp32_is_slower(self) -> None:
        wide = updates.accumulate(GC200, replace(self.TENSOR, accumulator=FLOAT))
        assert wide.cycles.compute > updates.accumulate(GC200, self.TENSOR).cycles.compute

    def test_families_in_the_order_of_their_work(self) -> None:
        families: tuple[Callable[[Device, Updated], Work], ...] = (
            updates.sgd,
            lambda d, t: updates.momentum(d, t, combined=False),
            updates.adam,
            updates.lamb,
        )
        cycles = [GC200.total(family(GC200, self.TENSOR).cycles) for family in families]
        assert cycles == sorted(cycles)

    def test_adam_takes_fifteen_to_twenty_cycles_for_each_parameter_of_a_tile(self) -> None:
        """Hardware reference, H12, for the element types of the day-03 program."""
        tensor = replace(self.TENSOR, first=HALF)
        some = updates.adam(GC200, tensor).cycles.compute
        more = updates.adam(GC200, replace(tensor, elements=2 * tensor.elements)).cycles.compute
        assert 15 <= (more - some) / 600 <= 20

    def test_centred_rmsprop_and_momentum_add_passes(self) -> None:
        def cycles(*, centred: bool, with_momentum: bool) -> float:
            work = updates.rmsprop(GC200, self.TENSOR, centred=centred, with_momentum=with_momentum)
            return work.cycles.compute

        plain = cycles(centred=False, with_momentum=False)
        assert plain < cycles(centred=True, with_momentum=False) < cycles(centred=True, with_momentum=True)

    def test_without_accumulation_nothing_is_reset(self) -> None:
        once = updates.adam(GC200, replace(self.TENSOR, accumulates=False)).cycles.compute
        reset = vertices.fill(GC200, 600, HALF)
        assert updates.adam(GC200, self.TENSOR).cycles.compute == pytest.approx(once + reset)


class TestWork:
    def test_repeating_piles_up_results_but_not_temporaries(self) -> None:
        work = Work("contraction", Cycles(1, 2, 3), temporary_bytes=10, flops=5, outputs_on_busiest_tile=7)
        twice = work.times(2)
        assert twice.cycles == Cycles(2, 4, 6)
        assert (twice.temporary_bytes, twice.flops, twice.outputs_on_busiest_tile) == (10, 10, 14)
