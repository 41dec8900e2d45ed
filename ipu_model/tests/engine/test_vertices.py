"""Vertex cycles against PopLibs' published formulas, worked out by hand (hardware reference, B2 and B5)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.predict import vertices
from ipu_model.predict.device import Device, Element
from ipu_model.predict.vertices import MatrixUnit

GC200 = Device()
HALF, FLOAT, INT = Element.HALF, Element.FLOAT, Element.INT
ONE = np.array([1.0])


def matrix_unit(units: int = 8, element_bytes: int = 2, workers: int = 6) -> MatrixUnit:
    return MatrixUnit(element_bytes, 4, units, 32 // element_bytes, workers)


def conv_1x1(field: float, gi: float = 1, go: float = 1, *, units: int = 16, element_bytes: int = 2) -> float:
    arrays = (np.array([field]), np.array([gi]), np.array([go]), ONE)
    return float(vertices.conv_1x1(*arrays, matrix_unit(units, element_bytes))[0])


class TestMatrixUnit:
    @pytest.mark.parametrize(("rows", "published"), [(16, 402), (64, 584), (256, 1352), (1024, 4424)])
    def test_published_on_tile_products(self, rows: int, published: float) -> None:
        """published/other.md, M2: `[N, 16] x [16, 16]` on every tile, fp16 with half partials."""
        assert conv_1x1(rows) == pytest.approx(published, rel=0.055)

    def test_pointwise_by_hand(self) -> None:
        # 96 elements: 16 for each worker, 30 + 4 (16 - 3) = 82 thread cycles; all are equal, so 6 x 82 + 14 = 506.
        # 50 + 6 (7 + 0) + 13 + 11 + (18 + 7 + 32 + 506), weights of 8 units load in 32 cycles.
        assert conv_1x1(96, units=8) == 50 + 42 + 13 + 11 + 18 + 7 + 32 + 506

    def test_more_input_groups_add_to_what_is_there(self) -> None:
        # Each further group: 15 + 19 + 6 + load + inner, one thread cycle more than the zeroing one (x 6), and
        # three cycles for each worker's set-up.
        assert conv_1x1(96, gi=3, units=8) - conv_1x1(96, gi=2, units=8) == 15 + 19 + 6 + 32 + 506 + 6 + 18

    def test_fp32_zeroes_first(self) -> None:
        # 24 elements: 4 for each worker, 46 + 8 = 54; zeroing adds 2 + 8 x 4 = 34; weights load in 64 cycles.
        expected = 50 + 42 + 13 + 11 + 18 + 7 + 64 + (6 * 54 + 14) + 6 * 34
        assert conv_1x1(24, element_bytes=4) == expected

    def test_rows_by_hand(self) -> None:
        # 6 rows of 8: one whole row for each worker, 17 + 16 + 4 x 8 = 65; 3 x 3 positions of 6 x 65 + 9 = 399;
        # 3 (14 + 3 (12 + 32 + 18)) = 600; zeroing 6 (ceil(48 x 8 / 12) + 5) = 222.
        cycles = vertices.conv_nx1(
            np.array([6.0]), np.array([8.0]), np.array([48.0]), ONE, ONE, ONE, (3, 3), matrix_unit()
        )
        per_group = 17 + 0 + 1 + 6 + 16 + (14 + 14 + 600 + 9 * 399) + 222
        assert cycles[0] == 109 + 54 + 57 - 6 + 1 + per_group

    def test_a_tile_with_four_workers_by_hand(self) -> None:
        # 96 elements: 24 for each worker, 30 + 4 (24 - 3) = 114 thread cycles; 4 x 114 + 14 = 470; set-up 4 x 7.
        four = vertices.conv_1x1(np.array([96.0]), ONE, ONE, ONE, matrix_unit(workers=4))
        assert four[0] == 50 + 28 + 13 + 11 + 18 + 7 + 32 + 470

    def test_rows_that_are_cut_touch_more_pieces_by_hand(self) -> None:
        # 3 rows of 64 on four workers: whole rows take 16 + 4 x 64 = 272. Cut, each worker has 48 elements of at most
        # two rows: 2 x 16 + 4 x 48 = 224. With 17 before: 241, and 4 x 241 + 9 for the only kernel position.
        cycles = vertices.conv_nx1(
            np.array([3.0]), np.array([64.0]), np.array([192.0]), ONE, ONE, ONE, (1, 1), matrix_unit(workers=4)
        )
        zeroing = 4 * (192 * 8 / 8 + 5)
        per_group = 17 + 0 + 1 + 6 + 16 + (14 + 14 + 14 + 12 + 32 + 18 + 4 * 241 + 9) + zeroing
        assert cycles[0] == 109 + 54 + 57 - 6 + 1 + per_group

    @given(st.integers(1, 200), st.integers(1, 64))
    def test_more_rows_are_never_faster(self, rows: int, width: int) -> None:
        def cycles(rows: int) -> float:
            field = np.array([float(rows * width)])
            sizes = np.array([float(rows)]), np.array([float(width)]), field, ONE, ONE, ONE
            return float(vertices.conv_nx1(*sizes, (3, 3), matrix_unit())[0])

        assert cycles(rows + 1) >= cycles(rows)

    @given(st.integers(1, 2000), st.sampled_from([2, 4]))
    def test_more_field_elements_are_never_faster(self, field: int, element_bytes: int) -> None:
        assert conv_1x1(field + 1, element_bytes=element_bytes) >= conv_1x1(field, element_bytes=element_bytes)

    def test_reduce_stage_by_hand(self) -> None:
        # 100 results of 10 partials: 25 quads, 5 for the busiest worker: 33 + 6 (20 + (2 x 10 + 9) x 5).
        cycles = vertices.reduce_stage(np.array([100.0]), np.array([10.0]), matrix_unit())
        assert cycles[0] == 33 + 6 * (20 + 29 * 5)

    def test_half_partials_are_added_eight_at_a_time(self) -> None:
        # 100 results are 13 groups of eight, 3 for the busiest worker.
        half = MatrixUnit(element_bytes=2, partial_bytes=2, units=16, channel_group=16, workers=6)
        assert vertices.reduce_stage(np.array([100.0]), np.array([10.0]), half)[0] == 33 + 6 * (20 + 29 * 3)


class TestVectorUnit:
    def test_binary_op_by_hand(self) -> None:
        # 600 fp16 elements: 100 for each worker, 25 vectors of three cycles.
        cycles = vertices.elementwise(GC200, 600, HALF, ("add",), vertices.BINARY)
        assert cycles == 11 + 6 * (29 + 3 * 25)

    def test_fp32_vectors_are_half_as_wide(self) -> None:
        cycles = vertices.elementwise(GC200, 600, FLOAT, ("add",), vertices.BINARY)
        assert cycles == 11 + 6 * (29 + 3 * 50)

    def test_integers_go_one_by_one(self) -> None:
        cycles = vertices.elementwise(GC200, 600, INT, ("add",), vertices.BINARY)
        assert cycles == 11 + 6 * (29 + 5 * 100)

    def test_a_chain_loads_and_stores_once(self) -> None:
        assert vertices.loop_cycles(("exp", "add"), HALF) == 4 + 3 - 2

    def test_broadcast_by_hand(self) -> None:
        # 100 elements for each worker: 13 rows of eight channels. fp16: 19 + 3 + 15 + 2 x 13, all eight at once; fp32:
        # 17 + 8 (8 + 2 x 13), one channel after another.
        assert vertices.broadcast_vector(GC200, 600, HALF) == 13 + 6 * (22 + 15 + 2 * 13)
        assert vertices.broadcast_vector(GC200, 600, FLOAT) == 13 + 6 * (17 + 8 * (8 + 2 * 13))

    def test_a_copy_in_blocks_and_one_element_by_element(self) -> None:
        # 98 thread cycles for 16 x 16 fp16 elements are 0.19 a byte; single elements take what PopLibs' regression
        # has for pieces of two and of four bytes: 587 + 5.15 and 587 + 3.13 a byte.
        assert vertices.layout_copy(GC200, 1000.0, 2) == pytest.approx(150 + 0.19 * 1000)
        # By the same formula fp32 elements, which move in pairs, take 258 for 1,024 bytes.
        assert vertices.layout_copy(GC200, 1000.0, 4) == pytest.approx(150 + 0.19 * 1000 * (258 / 1024) / (98 / 512))
        assert vertices.layout_copy(GC200, 1000.0, 2, in_blocks=False) == pytest.approx(587 + 5.15 * 1000)
        assert vertices.layout_copy(GC200, 1000.0, 4, in_blocks=False) == pytest.approx(587 + 3.13 * 1000)

    def test_broadcast_by_rows_by_hand(self) -> None:
        # 12 rows of 128 fp16 elements: two for each worker, 7 + 2 x 32; shared they would take 12 (7 + 2 x 6).
        assert vertices.broadcast_rows(GC200, 12 * 128, 128, HALF) == 11 + 6 * (15 + 2 * (7 + 2 * 32))
        # One row is shared: 6 vectors for each worker.
        assert vertices.broadcast_rows(GC200, 128, 128, HALF) == 11 + 6 * (15 + 7 + 2 * 6)

    def test_rows_that_are_no_whole_vectors_start_late(self) -> None:
        # 12 rows of 197: 50 vectors each, and 25 cycles instead of 7 to start.
        assert vertices.broadcast_rows(GC200, 12 * 197, 197, HALF) == 11 + 6 * (15 + 2 * (25 + 2 * 50))

    def test_cast_by_hand(self) -> None:
        assert vertices.cast(GC200, 600) == 12 + 6 * (37 + 2 * 25)

    def test_reduction_by_hand(self) -> None:
        # 100 elements for each worker: 13 times eight fp16, 25 times four fp32.
        assert vertices.reduce_rows(GC200, 600, HALF) == 33 + 6 * (20 + 5 * 13)
        assert vertices.reduce_rows(GC200, 600, FLOAT) == 33 + 6 * (20 + 5 * 25)

    @pytest.mark.parametrize(
        ("element", "other", "cycles"), [(HALF, HALF, 2), (FLOAT, FLOAT, 2), (HALF, FLOAT, 5), (FLOAT, HALF, 4)]
    )
    def test_scaled_addition_of_mixed_types(self, element: Element, other: Element, cycles: int) -> None:
        vectors = 25 if element is HALF else 50
        assert vertices.scaled_add(GC200, 600, element, other) == 57 + 6 * (24 + cycles * vectors)

    def test_pool_by_hand(self) -> None:
        # 3 x 3 window, three cycles for each position and vector, a tenth more for rows.
        assert vertices.pool(GC200, 600, 9, HALF, 3) == pytest.approx(7 + 6 * (60 + 1.1 * 27 * 25))


class TestSpread:
    def test_large_tensors_use_every_tile(self) -> None:
        assert GC200.spread(1472 * 1000, HALF) == 1000
        assert GC200.spread(1472 * 1000 + 1, HALF) == 1001

    def test_small_tensors_stay_together(self) -> None:
        # At least 128 bytes on a tile.
        assert GC200.spread(256, HALF) == 64
        assert GC200.spread(256, FLOAT) == 32
        assert GC200.spread(10, HALF) == 10
        assert GC200.spread(0, HALF) == 0
