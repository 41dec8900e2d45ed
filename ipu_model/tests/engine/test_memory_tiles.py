"""How bytes lie on tiles: linear mapping, tiles reserved for I/O, and sums that must agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory_support import memory_for, on_fullest, squares, total

from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.hardware import chip
from ipu_model.predict.memory.tiles import Live, ScheduledOp, Spread, TileSpace, ipu_memory, pieces_of
from ipu_model.predict.profile import CODE, RESERVED

SPACE = TileSpace(Device())
WITH_IO = TileSpace(Device(), io_tiles=64)
TILES = 1472


def laid_out(spreads: list[Spread], space: TileSpace = SPACE) -> list[float]:
    """Return the bytes on each tile, by walking over all pieces."""
    pieces, tiles = pieces_of(spreads, space), np.zeros(space.tiles)
    for start, end, value in zip(pieces.starts, pieces.ends, pieces.values):
        tiles[start:end] += value
    return tiles.tolist()


class TestLinearMapping:
    def test_a_tensor_takes_tiles_from_the_first_one_on_and_the_last_holds_the_rest(self) -> None:
        """10,050 elements, 100 on the busiest tile."""
        assert laid_out([SPACE.place(10_050, 100, 4)]) == [400.0] * 100 + [200.0] + [0.0] * (TILES - 101)

    @given(st.integers(1, 10**7), st.floats(1, 10**5), st.sampled_from([1, 2, 4]), st.sampled_from([SPACE, WITH_IO]))
    @settings(max_examples=50)
    def test_no_byte_is_lost_nor_on_a_tile_for_io(
        self, elements: int, on_tile: float, size: int, space: TileSpace
    ) -> None:
        place = space.place(elements, on_tile, size)
        tiles = laid_out([place], space)
        assert place.total == elements * size
        assert sum(tiles) == pytest.approx(elements * size)
        assert not any(tiles[space.compute_tiles :])
        assert space.compute_tiles == TILES - space.io_tiles

    @given(st.lists(st.integers(1, 2_000), min_size=1, max_size=60))
    @settings(max_examples=50)
    def test_small_tensors_lie_behind_one_another(self, sizes: list[int]) -> None:
        """What is too small for every tile goes round the tiles: none has more than its share and one tensor."""
        tiles = laid_out([SPACE.place(elements, 32, 4) for elements in sizes])
        tiles_taken = sum(math.ceil(elements / 32) for elements in sizes)
        assert max(tiles) <= 128 * math.ceil(tiles_taken / TILES)
        assert sum(tiles) == pytest.approx(4 * sum(sizes))


class TestTilesForIo:
    def test_they_hold_what_is_transferred_beside_the_computation(self) -> None:
        memory = memory_for(squares(2, width=1024, batch=64), io_tiles=64, overlaps_input=True)[0]
        assert total(memory, "I/O tile buffers") == 1024 * 64 * 4
        assert memory.tiles[-64:] == pytest.approx([on_fullest(memory, *CODE, RESERVED) + 1024 * 64 * 4 / 64] * 64)

    def test_fewer_tiles_hold_more_each(self) -> None:
        graph = squares(2, width=1024, batch=1024)
        all_tiles, fewer = (memory_for(graph, io_tiles=count)[0] for count in (0, 192))
        assert fewer.max_tile_bytes > all_tiles.max_tile_bytes
        needed = [max(step.temporary_bytes for step in memory.liveness) for memory in (all_tiles, fewer)]
        assert needed[1] == pytest.approx(needed[0] * 1472 / (1472 - 192))
        assert total(fewer, "variables") == total(all_tiles, "variables")


@example([(0, 4_999), (3_000, 3_001)])
@given(st.lists(st.tuples(st.integers(0, 4_999), st.integers(0, 4_999)), min_size=1, max_size=8))
@settings(max_examples=10)
def test_long_programs_are_summed_in_stretches(spans: list[tuple[int, int]]) -> None:
    """More steps than are looked at together: the most that is live at once, counted step by step."""
    lives = [Live(SPACE.everywhere(100.0), min(span), max(span), "activations") for span in spans]
    at_once = max(sum(min(s) <= step <= max(s) for s in spans) for step in {end for s in spans for end in s})
    assert ipu_memory(0, [ScheduledOp("op", "forward")] * 5_000, lives, SPACE).tiles == (100.0 * at_once,) * TILES


def test_another_chip_has_its_own_tiles() -> None:
    memory = memory_for(squares(2), settings=CostSettings(device=Device(chip("GC2"))))
    assert memory.tile_bytes == 262_144
    assert len(memory[0].tiles) == 1216
