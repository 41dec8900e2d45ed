"""Vertex cycles against PopLibs' published formulas, worked out by hand (hardware reference, B2 and B5)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.predict import vertices
from ipu_model.predict.device import Device, Element
from ipu_model.predict.vertices import Array, MatrixUnit

GC200 = Device()
HALF, FLOAT, INT = Element.HALF, Element.FLOAT, Element.INT


def matrix_unit(units: int = 8, element_bytes: int = 2, workers: int = 6, partial_bytes: int = 4) -> MatrixUnit:
    return MatrixUnit(element_bytes, partial_bytes, units, 32 // element_bytes, workers)


UNIT, FOUR_WORKERS = matrix_unit(), matrix_unit(workers=4)


def conv_1x1(field: float, gi: float = 1, unit: MatrixUnit = UNIT) -> float:
    return float(vertices.conv_1x1(*(np.array([size]) for size in (field, gi, 1.0, 1.0)), unit)[0])


def conv_nx1(rows: float, width: float, kernel: tuple[int, int], unit: MatrixUnit = UNIT) -> float:
    sizes = (np.array([size]) for size in (rows, width, rows * width, 1.0, 1.0, 1.0))
    return float(vertices.conv_nx1(*sizes, kernel, unit)[0])


def reduce_stage(outputs: float, depth: float, unit: MatrixUnit) -> float:
    return float(vertices.reduce_stage(np.array([outputs]), np.array([depth]), unit)[0])


def dots(vertex: Callable[..., Array], outputs: float, length: float, unit: MatrixUnit = UNIT) -> float:
    return float(vertex(np.array([outputs]), np.array([length]), unit)[0])


@pytest.mark.parametrize(("rows", "published"), [(16, 402), (64, 584), (256, 1352), (1024, 4424)])
def test_published_on_tile_products(rows: int, published: float) -> None:
    """published/other.md, M2: `[N, 16] x [16, 16]` on every tile, fp16 with half partials."""
    assert conv_1x1(rows, unit=matrix_unit(units=16)) == pytest.approx(published, rel=0.055)


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
        (
            conv_1x1(24, unit=matrix_unit(units=16, element_bytes=4)),
            50 + 42 + 13 + 11 + 18 + 7 + 64 + (6 * 54 + 14) + 6 * 34,
        ),
        # Four workers have 24 of 96 elements each, 30 + 4 (24 - 3) = 114 thread cycles; 4 x 114 + 14 = 470; set-up 28.
        (conv_1x1(96, unit=FOUR_WORKERS), 50 + 28 + 13 + 11 + 18 + 7 + 32 + 470),
        # 6 rows of 8: one whole row for each worker, 17 + 16 + 4 x 8 = 65; 3 x 3 positions of 6 x 65 + 9 = 399;
        # 3 (14 + 3 (12 + 32 + 18)) = 600; zeroing 6 (ceil(48 x 8 / 12) + 5) = 222.
        (
            conv_nx1(6.0, 8.0, (3, 3)),
            109 + 54 + 57 - 6 + 1 + 17 + 0 + 1 + 6 + 16 + (14 + 14 + 600 + 9 * 399) + 222,
        ),
        # 3 rows of 64 on four workers: whole rows take 16 + 4 x 64 = 272. Cut, each worker has 48 elements of at most
        # two rows: 2 x 16 + 4 x 48 = 224. With 17 before: 241, and 4 x 241 + 9 for the only kernel position.
        (
            conv_nx1(3.0, 64.0, (1, 1), FOUR_WORKERS),
            109 + 54 + 57 - 6 + 1 + 17 + 0 + 1 + 6 + 16 + (14 + 14 + 14 + 12 + 32 + 18 + 4 * 241 + 9) + 4 * (192 + 5),
        ),
        # 100 results of 10 partials: 25 quads, 5 for the busiest worker: 33 + 6 (20 + (2 x 10 + 9) x 5). Half partials
        # are added eight at a time: 13 groups of eight, 3 for the busiest worker.
        (reduce_stage(100.0, 10.0, UNIT), 33 + 6 * (20 + 29 * 5)),
        (reduce_stage(100.0, 10.0, matrix_unit(16, partial_bytes=2)), 33 + 6 * (20 + 29 * 3)),
        # 17 results for the busiest worker, four at a time.
        (float(vertices.cast_stage(np.array([100.0]), 6)[0]), 12 + 6 * (37 + 2 * 5)),
        # 6 rows of 8, one for each worker: 15 + (8 - 5). Two passes (fp32 partials) for each of three rows of a
        # kernel, whose columns are one step; two blocks of channels. Weights take 16 + 21 + 6 x 11.
        (
            float(vertices.conv_slic(*(np.array([size]) for size in (6.0, 8.0, 2.0)), (3, 3), UNIT)[0]),
            28 + 2 * (15 + 3 * (20 + 16 + 21 + 66 + 6 * 2 * 18)),
        ),
        # 12 products of two vectors of 32: two for each worker, eight vectors of fp16, 16 of fp32 at two cycles.
        (dots(vertices.conv_hmac, 12.0, 32.0), 60 + 23 + 15 + 10 + 6 * 2 * (14 + 8)),
        (dots(vertices.conv_hmac, 12.0, 32.0, matrix_unit(element_bytes=4)), 60 + 48 + 6 * 2 * (14 + 32)),
        # 48 results of nine products: two vectors of four results for each worker.
        (dots(vertices.conv_vmac, 48.0, 9.0), 60 + 23 + 15 + 10 + 6 * 2 * (7 + 9)),
    ],
)
def test_the_matrix_unit_by_hand(cycles: float, by_hand: float) -> None:
    assert cycles == by_hand


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 2000), st.sampled_from([2, 4]))
def test_more_rows_or_elements_are_never_faster(rows: int, width: int, field: int, element_bytes: int) -> None:
    unit = matrix_unit(element_bytes=element_bytes)
    assert conv_nx1(rows + 1, width, (3, 3)) >= conv_nx1(rows, width, (3, 3))
    assert conv_1x1(field + 1, unit=unit) >= conv_1x1(field, unit=unit)


# 600 elements are 100 for each worker: 25 vectors of fp16, 50 of fp32.
@pytest.mark.parametrize(
    ("cycles", "by_hand"),
    [
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
    ],
)
def test_the_vector_unit_by_hand(cycles: float, by_hand: float) -> None:
    assert cycles == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize(
    ("elements", "element", "on_tile"),
    [
        (1472 * 1000, HALF, 1000),
        (1472 * 1000 + 1, HALF, 1001),
        # Small tensors stay together: at least 128 bytes on a tile.
        (256, HALF, 64),
        (256, FLOAT, 32),
        (10, HALF, 10),
        (0, HALF, 0),
    ],
)
def test_spread(elements: int, element: Element, on_tile: int) -> None:
    assert GC200.spread(elements, element) == on_tile
