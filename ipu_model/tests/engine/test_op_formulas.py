"""Vertices by PopLibs' published formulas, and the passes, reductions and exchanges of ops and updates made of them.

Worked out by hand (hardware reference, B2 and B5). 600 elements on each tile are 100 for each of six workers, which are
25 vectors of fp16 or 50 of fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hand_written import tensor, work_of
from net_support import Trained, stepped
from torch import nn

from ipu_model.batching import Batching
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import vertices
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.device import CostSettings, Cycles, Device, Element, Work
from ipu_model.predict.ops import indexing, moves, normalisation, pointwise, reductions, updates
from ipu_model.predict.ops.normalisation import Normalised
from ipu_model.predict.ops.updates import UPDATE_PART, Updated, VariableCost, variable_costs, variable_ipus
from ipu_model.predict.program import Program
from ipu_model.predict.vertices import MatrixUnit
from ipu_model.step import FLOAT16, FLOAT32, UINT8
from published.building import begin_block

GC200 = Device()
HALF, FLOAT, INT = Element.HALF, Element.FLOAT, Element.INT
FIXED = GC200.constants.exchange_fixed_cycles
SPREAD = (1472, 600)


# --- vertices


def matrix_unit(units: int = 8, element_bytes: int = 2, workers: int = 6, partial_bytes: int = 4) -> MatrixUnit:
    return MatrixUnit(element_bytes, partial_bytes, units, 32 // element_bytes, workers)


UNIT, FOUR_WORKERS, SINGLE = matrix_unit(), matrix_unit(workers=4), matrix_unit(element_bytes=4)


def one(vertex: Callable[..., np.ndarray], *sizes: float, **other: object) -> float:
    return float(vertex(*(np.array([size]) for size in sizes), *other.values())[0])


def conv_1x1(field: float, gi: float = 1, unit: MatrixUnit = UNIT) -> float:
    return one(vertices.conv_1x1, field, gi, 1.0, 1.0, unit=unit)


def conv_nx1(rows: float, width: float, kernel: tuple[int, int], unit: MatrixUnit = UNIT) -> float:
    return one(vertices.conv_nx1, rows, width, rows * width, 1.0, 1.0, 1.0, kernel=kernel, unit=unit)


@pytest.mark.parametrize(
    ("cycles", "by_hand"),
    [
        # 96 elements: 16 for each worker, 30 + 4 (16 - 3) = 82 thread cycles; all are equal, so 6 x 82 + 14 = 506.
        # 50 + 6 (7 + 0) + 13 + 11 + (18 + 7 + 32 + 506), weights of 8 units load in 32 cycles.
        (conv_1x1(96), 50 + 42 + 13 + 11 + 18 + 7 + 32 + 506),
        # Each further group: 15 + 19 + 6 + load + inner, one thread cycle more than the zeroing one (x 6), and
        # three cycles for each worker's set-up.
        (conv_1x1(96, gi=3) - conv_1x1(96, gi=2), 15 + 19 + 6 + 32 + 506 + 6 + 18),
        # fp32 zeroes first. 24 elements: 4 for each worker, 46 + 8 = 54; zeroing adds 2 + 8 x 4 = 34; weights load in
        # 64 cycles.
        (conv_1x1(24, unit=matrix_unit(16, 4)), 50 + 42 + 13 + 11 + 18 + 7 + 64 + (6 * 54 + 14) + 6 * 34),
        # Four workers have 24 of 96 elements each, 30 + 4 (24 - 3) = 114 thread cycles; 4 x 114 + 14 = 470; set-up 28.
        (conv_1x1(96, unit=FOUR_WORKERS), 50 + 28 + 13 + 11 + 18 + 7 + 32 + 470),
        # 6 rows of 8: one whole row for each worker, 17 + 16 + 4 x 8 = 65; 3 x 3 positions of 6 x 65 + 9 = 399;
        # 3 (14 + 3 (12 + 32 + 18)) = 600; zeroing 6 (ceil(48 x 8 / 12) + 5) = 222.
        (conv_nx1(6, 8, (3, 3)), 109 + 54 + 57 - 6 + 1 + 17 + 1 + 6 + 16 + (14 + 14 + 600 + 9 * 399) + 222),
        # 3 rows of 64 on four workers: whole rows take 16 + 4 x 64 = 272. Cut, each worker has 48 elements of at most
        # two rows: 2 x 16 + 4 x 48 = 224. With 17 before: 241, and 4 x 241 + 9 for the only kernel position.
        (
            conv_nx1(3, 64, (1, 1), FOUR_WORKERS),
            109 + 54 + 57 - 6 + 1 + 17 + 1 + 6 + 16 + (14 + 14 + 14 + 12 + 32 + 18 + 4 * 241 + 9) + 4 * (192 + 5),
        ),
        # 100 results of 10 partials: 25 quads, 5 for the busiest worker: 33 + 6 (20 + (2 x 10 + 9) x 5). Half partials
        # are added eight at a time: 13 groups of eight, 3 for the busiest worker.
        (one(vertices.reduce_stage, 100, 10, unit=UNIT), 33 + 6 * (20 + 29 * 5)),
        (one(vertices.reduce_stage, 100, 10, unit=matrix_unit(16, partial_bytes=2)), 33 + 6 * (20 + 29 * 3)),
        # 17 results for the busiest worker, four at a time.
        (one(vertices.cast_stage, 100, workers=6), 12 + 6 * (37 + 2 * 5)),
        # 6 rows of 8, one for each worker: 15 + (8 - 5). Two passes (fp32 partials) for each of three rows of a
        # kernel, whose columns are one step; two blocks of channels. Weights take 16 + 21 + 6 x 11.
        (
            one(vertices.conv_slic, 6, 8, 2, kernel=(3, 3), unit=UNIT),
            28 + 2 * (15 + 3 * (20 + 16 + 21 + 66 + 6 * 2 * 18)),
        ),
        # 12 products of two vectors of 32: two for each worker, eight vectors of fp16, 16 of fp32 at two cycles.
        (one(vertices.conv_hmac, 12, 32, unit=UNIT), 60 + 23 + 15 + 10 + 6 * 2 * (14 + 8)),
        (one(vertices.conv_hmac, 12, 32, unit=SINGLE), 60 + 48 + 6 * 2 * (14 + 32)),
        # 48 results of nine products: two vectors of four results for each worker.
        (one(vertices.conv_vmac, 48, 9, unit=UNIT), 60 + 23 + 15 + 10 + 6 * 2 * (7 + 9)),
        # The vector unit.
        (vertices.elementwise(GC200, 600, HALF, ("add",), vertices.BINARY), 11 + 6 * (29 + 3 * 25)),
        (vertices.elementwise(GC200, 600, FLOAT, ("add",), vertices.BINARY), 11 + 6 * (29 + 3 * 50)),
        (vertices.elementwise(GC200, 600, INT, ("add",), vertices.BINARY), 11 + 6 * (29 + 5 * 100)),  # one by one
        (vertices.loop_cycles(("exp", "add"), HALF), 4 + 3 - 2),  # a chain loads and stores once
        # 13 rows of eight channels for each worker. fp16: 19 + 3 + 15 + 2 x 13, all at once; fp32: 17 + 8 (8 + 2 x
        # 13), one channel after another.
        (vertices.broadcast_vector(GC200, 600, HALF), 13 + 6 * (22 + 15 + 2 * 13)),
        (vertices.broadcast_vector(GC200, 600, FLOAT), 13 + 6 * (17 + 8 * (8 + 2 * 13))),
        # 12 rows of 128 fp16 elements: two for each worker, 7 + 2 x 32; shared they would take 12 (7 + 2 x 6). One row
        # is shared: 6 vectors for each worker. Rows of 197 are 50 vectors, and take 25 cycles instead of 7 to start.
        (vertices.broadcast_rows(GC200, 12 * 128, 128, HALF), 11 + 6 * (15 + 2 * (7 + 2 * 32))),
        (vertices.broadcast_rows(GC200, 128, 128, HALF), 11 + 6 * (15 + 7 + 2 * 6)),
        (vertices.broadcast_rows(GC200, 12 * 197, 197, HALF), 11 + 6 * (15 + 2 * (25 + 2 * 50))),
        # 98 thread cycles for 16 x 16 fp16 elements are 0.19 a byte; by the same formula fp32 elements, which move in
        # pairs, take 258 for 1,024 bytes. Single elements take what PopLibs' regression has for pieces of two and of
        # four bytes: 587 + 5.15 and 587 + 3.13 a byte.
        (vertices.layout_copy(GC200, 1000.0, 2), 150 + 0.19 * 1000),
        (vertices.layout_copy(GC200, 1000.0, 4), 150 + 0.19 * 1000 * (258 / 1024) / (98 / 512)),
        (vertices.layout_copy(GC200, 1000.0, 2, in_blocks=False), 587 + 5.15 * 1000),
        (vertices.layout_copy(GC200, 1000.0, 4, in_blocks=False), 587 + 3.13 * 1000),
        (vertices.cast(GC200, 600), 12 + 6 * (37 + 2 * 25)),
        # 13 times eight fp16, 25 times four fp32.
        (vertices.reduce_rows(GC200, 600, HALF), 33 + 6 * (20 + 5 * 13)),
        (vertices.reduce_rows(GC200, 600, FLOAT), 33 + 6 * (20 + 5 * 25)),
        # Scaled additions of one type and of mixed types.
        (vertices.scaled_add(GC200, 600, HALF, HALF), 57 + 6 * (24 + 2 * 25)),
        (vertices.scaled_add(GC200, 600, FLOAT, FLOAT), 57 + 6 * (24 + 2 * 50)),
        (vertices.scaled_add(GC200, 600, HALF, FLOAT), 57 + 6 * (24 + 5 * 25)),
        (vertices.scaled_add(GC200, 600, FLOAT, HALF), 57 + 6 * (24 + 4 * 50)),
        # 3 x 3 window, three cycles for each position and vector, a tenth more for rows.
        (vertices.pool(GC200, 600, 9, HALF, 3), 7 + 6 * (60 + 1.1 * 27 * 25)),
        # Elements on a tile: small tensors stay together, at least 128 bytes.
        (GC200.spread(1472 * 1000, HALF), 1000),
        (GC200.spread(1472 * 1000 + 1, HALF), 1001),
        *((GC200.spread(*tensor), on_tile) for tensor, on_tile in (((256, HALF), 64), ((256, FLOAT), 32))),
        *((GC200.spread(count, HALF), count) for count in (10, 0)),
    ],
)
def test_vertices_by_hand(cycles: float, by_hand: float) -> None:
    assert cycles == pytest.approx(by_hand, rel=1e-12)


# --- ops


def test_an_exchange_takes_a_cycle_for_four_bytes_and_a_fixed_part_and_synchronises() -> None:
    assert GC200.exchange(4000, phases=2) == Cycles(exchange=1000 + 2 * FIXED, phases=2)
    assert GC200.total(Cycles(10, 20, 3)) == 10 + 20 + 3 * GC200.sync_cycles


def test_repeating_piles_up_results_but_not_temporaries() -> None:
    twice = Work("contraction", Cycles(1, 2, 3), temporary_bytes=10, flops=5, outputs_on_busiest_tile=7).times(2)
    assert twice.cycles == Cycles(2, 4, 6)
    assert (twice.temporary_bytes, twice.flops, twice.outputs_on_busiest_tile) == (10, 10, 14)


def test_operands_that_lie_elsewhere_are_exchanged_as_those_of_a_gradient() -> None:
    here = pointwise.pointwise(GC200, 600, HALF, ("add",), operands=2)
    there = pointwise.pointwise(GC200, 600, HALF, ("add",), operands=2, moved=1)
    assert here.cycles.phases == 0
    assert there.cycles == here.cycles + GC200.exchange(1200)
    assert there.temporary_bytes == 1200
    assert work_of("relu", SPREAD, SPREAD).cycles == Cycles(compute=9 + 6 * (20 + 2 * 25))
    gradient = work_of("threshold_backward", SPREAD, SPREAD, SPREAD)
    assert gradient.cycles == Cycles(compute=9 + 6 * (29 + 3 * 25)) + GC200.exchange(1200)


@pytest.mark.parametrize(("depth", "stages"), [(2, 1), (16, 1), (17, 2), (125, 2), (126, 3), (1472, 3)])
def test_stages_bound_the_number_of_messages(depth: int, stages: int) -> None:
    assert reductions.combined(GC200, 8, depth).phases >= stages
    assert reductions.reduced(GC200, 64, 64, 1, HALF).cycles.phases == 0  # one tile needs no exchange


class TestNorms:
    NORM = Normalised(elements=64 * 64 * 256, n=800, statistics=64, element=HALF)

    def test_passes_and_reductions_of_each_direction(self) -> None:
        whole = 4 * vertices.broadcast_vector(GC200, 800, HALF) + 2 * vertices.reduce_rows(GC200, 800, HALF)
        small = GC200.constants.least_bytes_per_tile / 2
        whole += 4 * vertices.broadcast_vector(GC200, small, HALF)
        assert whole < normalisation.forward(GC200, self.NORM).cycles.compute < whole + 2000
        two = 2 * vertices.broadcast_vector(GC200, 64, HALF) + 2 * vertices.broadcast_vector(GC200, 800, HALF)
        assert normalisation.inference(GC200, self.NORM).cycles == Cycles(compute=two)
        # Eight elements take 2 thread cycles in a pass and 5 in a reduction: 10 and 4 of them against 4 and 2.
        large = replace(self.NORM, n=20000, elements=20000 * 1472)
        forward, backward = normalisation.forward(GC200, large), normalisation.backward(GC200, large)
        expected = (10 * 2 + 4 * 5) / (4 * 2 + 2 * 5)
        assert backward.cycles.compute / forward.cycles.compute == pytest.approx(expected, rel=0.02)

    def test_a_stable_norm_reduces_twice(self) -> None:
        plain, stable = (normalisation.forward(GC200, replace(self.NORM, stable=s)).cycles for s in (False, True))
        assert stable.compute > plain.compute
        assert stable.phases > plain.phases


@pytest.mark.parametrize(
    ("kind", "is_gradient", "per_vector", "read", "phases"),
    # A gradient fills its result first; that of a maximum compares inputs and outputs again.
    [
        ("avg_pool2d", False, 3, 2400, 2),
        ("avg_pool2d_backward", True, 3, 600, 2),
        ("max_pool2d_with_indices_backward", True, 5, 2 * 600 + 2400, 3),
    ],
)
def test_pools_by_hand(kind: str, is_gradient: bool, per_vector: int, read: int, phases: int) -> None:
    """Windows of 3 x 3: 600 results and 2,400 inputs on each tile."""
    large, small = (1, 1472, 60, 40), (1, 1472, 30, 20)
    shapes = (large, small, large) if is_gradient else (small, large)
    work = work_of(kind, *shapes, arguments=((3, 3),))
    filled = vertices.fill(GC200, 2400, HALF) if is_gradient else 0
    assert work.cycles.compute == pytest.approx(7 + 6 * (60 + 1.1 * per_vector * 9 * 25) + filled)
    assert work.cycles.exchange == GC200.exchange(2 * read, phases).exchange
    assert (work.cycles.phases, work.temporary_bytes) == (phases, 2 * read)


class TestLookups:
    def test_one_row_of_a_table_looked_up_on_every_tile_by_hand(self) -> None:
        """A row of four fp16 elements is one vector of eight bytes, and 96 are 16 for each worker: 19 + 2 cycles each.

        A tile receives its indices and the row, and its results go where they are used. An update receives rows
        instead, and every worker passes over all indices at five cycles; the tile's table of zeros is summed up with
        that of the others.
        """
        picked, put = (f(GC200, 1, 4, 96 * 1472, HALF) for f in (indexing.gather, indexing.scatter))
        found, results, row = 30 + 16 * (19 + 2), 6 * (26 + 2 * 16), 6 * (26 + 2)
        assert picked.cycles.compute == 6 * found + results + 600
        assert picked.cycles.exchange == pytest.approx((96 * 4 + 8 + 96 * 8) / 4 + 2 * FIXED)
        zeroed, summed = 6 * (26 + 1), row + 33 + 6 * (20 + 5)
        assert put.cycles.compute == 6 * (found + 5 * 96) + results + zeroed + summed + zeroed + row
        assert put.cycles.exchange == pytest.approx((96 * 4 + 96 * 8 + 8 + 8) / 4 + 3 * FIXED)
        assert (picked.temporary_bytes, picked.outputs_on_busiest_tile) == (96 * 4 + 97 * 8, 96 * 4)
        assert (put.temporary_bytes, put.outputs_on_busiest_tile) == (96 * 4 + 98 * 8, 4)

    def test_rows_of_a_large_table_are_spread_unless_many_lookups_share_copies_of_it(self) -> None:
        """Published: 256 rows of 16 take 5,114 cycles for 512 lookups and 2,555 for 2,048; what lies between is the
        second stage."""
        few, many = (GC200.total(indexing.gather(GC200, 256, 16, n, FLOAT).cycles) for n in (512, 2048))
        assert few == pytest.approx(5114, rel=0.15)
        assert many == pytest.approx(2555, rel=0.15)

    @pytest.mark.parametrize("tiles", [1, 1216, 1472])
    def test_one_tile_and_tables_of_one_element(self, tiles: int) -> None:
        device = Device(replace(GC200.chip, tiles=tiles))
        for rule in (indexing.gather, indexing.scatter):
            one, all_ = rule(device, 1, 1, 1, FLOAT), rule(device, 30_522, 768, 3072, HALF)
            assert device.total(one.cycles) < 2000
            # Every result (or update) is at least received once, at four bytes a cycle.
            assert all_.cycles.exchange > 3072 * 768 * 2 / 4 / tiles

    def test_a_plan_keeps_within_the_memory_proportion_if_one_can(self) -> None:
        """Published: 16,384 lookups of 256 elements in 4,096 rows take 41,553 cycles, at a proportion of 0.1 51,329."""
        size = (GC200, 4096, 256, 16_384, FLOAT)
        whole, tenth, least = (indexing.gather(*size, proportion) for proportion in (0.6, 0.1, 0.0))
        assert GC200.total(whole.cycles) == pytest.approx(41_553, rel=0.05)
        assert GC200.total(tenth.cycles) == pytest.approx(51_329, rel=0.1)
        assert whole.temporary_bytes > 0.1 * GC200.chip.tile_bytes > tenth.temporary_bytes >= least.temporary_bytes


class TestCopies:
    def test_a_rearrangement_moves_everything_in_blocks_and_casts_have_a_vertex(self) -> None:
        turned = replace(tensor("x", *SPREAD), stride=(1, 1472))
        rearranged, copied = work_of("clone", SPREAD, turned), moves.copied(GC200, 600, HALF)
        assert rearranged.cycles == Cycles(compute=vertices.layout_copy(GC200, 1200, 2)) + GC200.exchange(1200)
        assert work_of("clone", SPREAD, SPREAD).cycles == copied.cycles
        assert GC200.total(rearranged.cycles) > GC200.total(copied.cycles)
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


# --- accumulation and updates


TENSOR = Updated(elements=1472 * 600, weight=HALF, accumulator=HALF)


def compute(update: Callable[..., Work], **changes: object) -> float:
    return update(GC200, replace(TENSOR, **changes)).cycles.compute


class TestUpdates:
    def test_accumulation_by_hand_and_slower_in_fp32(self) -> None:
        work = updates.accumulate(GC200, TENSOR)
        assert work.cycles == Cycles(compute=57 + 6 * (24 + 2 * 25)) + GC200.exchange(1200)
        assert compute(updates.accumulate, accumulator=FLOAT) > compute(updates.accumulate)

    def test_families_in_the_order_of_their_work(self) -> None:
        momentum = updates.momentum(GC200, TENSOR, combined=False)
        works = [updates.sgd(GC200, TENSOR), momentum, updates.adam(GC200, TENSOR), updates.lamb(GC200, TENSOR)]
        cycles = [GC200.total(work.cycles) for work in works]
        assert cycles == sorted(cycles)
        kinds = ((False, False), (True, False), (True, True))
        rmsprops = [compute(partial(updates.rmsprop, centred=c, with_momentum=momentum)) for c, momentum in kinds]
        assert rmsprops == sorted(set(rmsprops))

    def test_adam_takes_fifteen_to_twenty_cycles_for_each_parameter_of_a_tile(self) -> None:
        """Hardware reference, H12, for the element types of the day-03 program."""
        some, more = (compute(updates.adam, first=HALF, elements=n * TENSOR.elements) for n in (1, 2))
        assert 15 <= (more - some) / 600 <= 20
        # Without accumulation nothing is reset.
        kept = compute(updates.adam, accumulates=False)
        assert compute(updates.adam) == pytest.approx(kept + vertices.fill(GC200, 600, HALF))


ADAMW = OptimiserSpec("ADAMW", Hyper(weight_decay=0.01), loss_scaling=1e3, accum_dtype=FLOAT16, first_dtype=FLOAT16)
MODEL = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
begin_block(MODEL[1], 1)
STEP = stepped(Trained(MODEL), torch.zeros(8, 64))
ACCUMULATING = Program(STEP, True, Batching(accumulation=2))


def updates_of(program: Program) -> list[VariableCost]:
    return [cost for cost in variable_costs(program) if cost.part == UPDATE_PART]


class TestUpdatesOfPrograms:
    def test_each_gradient_is_accumulated_where_its_variable_is_first_used(self) -> None:
        ipus = {"module.0.weight": 0, "module.0.bias": 0, "module.1.weight": 1, "module.1.bias": 1}
        assert variable_ipus(STEP) == ipus
        assert {cost.variable: cost.ipu for cost in variable_costs(ACCUMULATING)} == ipus

    def test_groups_have_their_own_numbers(self) -> None:
        spec = OptimiserSpec("SGD2", Hyper(lr=0.1), (Hyper(lr=0.1, weight_decay=0.1),))
        plain = updates_of(Program(STEP, True, optimiser=spec))
        decayed = updates_of(Program(STEP, True, optimiser=spec, groups={"module.0.weight": 0}))
        assert decayed[0].work.cycles.compute > plain[0].work.cycles.compute
        assert decayed[1:] == plain[1:]

    def test_clipping_adds_a_norm_and_a_pass_that_scales_each_gradient(self) -> None:
        """Of four tensors; scaling a tensor of one vector a worker takes 11 + 6 (20 + 2) cycles, here 64 elements."""
        plain = updates_of(replace(ACCUMULATING, optimiser=ADAMW))
        clipped = updates_of(replace(ACCUMULATING, optimiser=replace(ADAMW, max_grad_norm=1.0)))
        for before, after in zip(plain, clipped, strict=True):
            assert after.work.cycles.compute - before.work.cycles.compute > 11 + 6 * (20 + 2)
            assert after.work.cycles.phases > before.work.cycles.phases  # the factor goes to all tiles
