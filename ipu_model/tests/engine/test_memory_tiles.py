"""How bytes lie on tiles: linear mapping, tiles reserved for I/O, and sums that must agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory_support import FLOAT, HALF, adamw, memory_for, on_fullest, squares, total, variable_bytes

from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.hardware import chip
from ipu_model.predict.memory.tiles import Label, Live, Spread, TileSpace, ipu_memory, pieces_of
from ipu_model.predict.profile import CODE, RESERVED, IpuMemory
from ipu_model.predict.program import Recomputation
from published.convolutional import day03

ROOM = TileSpace(Device())
TILES = 1472


def laid_out(spreads: list[Spread], space: TileSpace = ROOM) -> list[float]:
    """Return the bytes on each tile, by walking over all pieces."""
    pieces, found = pieces_of(spreads, space), np.zeros(space.tiles)
    for start, end, value in zip(pieces.starts, pieces.ends, pieces.values):
        found[start:end] += value
    return [float(value) for value in found]


class TestLinearMapping:
    def test_a_tensor_takes_tiles_from_the_first_one_on(self) -> None:
        """10,000 elements, 100 on the busiest tile: 100 tiles, all full."""
        found = laid_out([ROOM.place(10_000, 100, 4)])
        assert found[:100] == [400.0] * 100
        assert not any(found[100:])

    def test_the_last_tile_holds_the_rest(self) -> None:
        found = laid_out([ROOM.place(1_050, 100, 4)])
        assert found[9:12] == [400.0, 200.0, 0.0]

    @given(st.integers(1, 10**7), st.floats(1, 10**5), st.sampled_from([1, 2, 4]))
    def test_no_byte_is_lost(self, elements: int, on_tile: float, size: int) -> None:
        place = ROOM.place(elements, on_tile, size)
        assert place.total == elements * size
        assert sum(laid_out([place])) == pytest.approx(elements * size)
        assert place.tiles <= TILES

    @given(st.lists(st.integers(1, 2_000), min_size=1, max_size=60))
    def test_small_tensors_lie_behind_one_another(self, sizes: list[int]) -> None:
        """What is too small for every tile goes round the tiles: none has more than its share and one tensor."""
        found = laid_out([ROOM.place(elements, 32, 4) for elements in sizes])
        tiles_taken = sum(math.ceil(elements / 32) for elements in sizes)
        assert max(found) <= 128 * math.ceil(tiles_taken / TILES)
        assert sum(found) == pytest.approx(4 * sum(sizes))


class TestTilesForIo:
    ROOM = TileSpace(Device(), io_tiles=64)

    @given(st.integers(1, 10**7), st.floats(1, 10**4))
    def test_tensors_keep_off_them(self, elements: int, on_tile: float) -> None:
        found = laid_out([self.ROOM.place(elements, on_tile, 4)], self.ROOM)
        assert not any(found[TILES - 64 :])
        assert sum(found) == pytest.approx(4 * elements)

    def test_they_hold_what_is_transferred_beside_the_computation(self) -> None:
        graph = squares(2, width=1024, batch=64)
        memory = memory_for(graph, io_tiles=64, overlaps_input=True)[0]
        assert total(memory, "I/O tile buffers") == 1024 * 64 * 4
        assert memory.tiles[-64:] == pytest.approx([on_fullest(memory, *CODE, RESERVED) + 1024 * 64 * 4 / 64] * 64)

    def test_fewer_tiles_hold_more_each(self) -> None:
        graph = squares(2, width=1024, batch=1024)
        all_tiles, fewer = (memory_for(graph, io_tiles=count)[0] for count in (0, 192))
        assert fewer.max_tile_bytes > all_tiles.max_tile_bytes
        needed = [max(step.temporary_bytes for step in memory.liveness) for memory in (all_tiles, fewer)]
        assert needed[1] == pytest.approx(needed[0] * 1472 / (1472 - 192))
        assert total(fewer, "variables") == total(all_tiles, "variables")


@pytest.fixture(scope="module")
def day03_ipus() -> list[IpuMemory]:
    memory = memory_for(day03(), accumulation=3, optimiser=adamw(HALF), recomputation=Recomputation.PIPELINE)
    return list(memory)


class TestSums:
    def test_categories_add_up_to_the_fullest_tile(self, day03_ipus: list[IpuMemory]) -> None:
        for memory in day03_ipus:
            assert sum(memory.bytes_by_category.values()) == pytest.approx(memory.max_tile_bytes)
            assert memory.tiles[memory.fullest_tile] == max(memory.tiles)

    def test_the_highest_step_is_the_fullest_tile(self, day03_ipus: list[IpuMemory]) -> None:
        for memory in day03_ipus:
            highest = max(step.bytes_on_tile for step in memory.liveness)
            assert memory.always_live_bytes + highest == pytest.approx(memory.max_tile_bytes)

    def test_variables_are_all_there(self, day03_ipus: list[IpuMemory]) -> None:
        expected = variable_bytes(day03())
        assert sum(total(memory, "variables") for memory in day03_ipus) == expected

    def test_code_is_on_every_tile(self, day03_ipus: list[IpuMemory]) -> None:
        for memory in day03_ipus:
            category = next(c for c in memory.categories if c.name == "internal exchange code")
            assert category.total_bytes == pytest.approx(category.bytes_on_fullest_tile * TILES)
            assert min(memory.tiles) > category.bytes_on_fullest_tile

    @example([(0, 4_999), (3_000, 3_001)])
    @given(st.lists(st.tuples(st.integers(0, 4_999), st.integers(0, 4_999)), min_size=1, max_size=8))
    @settings(max_examples=10, deadline=None)
    def test_long_programs_are_summed_in_stretches(self, spans: list[tuple[int, int]]) -> None:
        """More steps than are looked at together: the most that is live at once, counted step by step."""
        moments = [Label("op", "forward")] * 5_000
        lives = [Live(ROOM.everywhere(100.0), min(span), max(span), "activations") for span in spans]
        at_once = max(sum(min(s) <= step <= max(s) for s in spans) for step in {end for s in spans for end in s})
        assert ipu_memory(0, moments, lives, ROOM).tiles == (100.0 * at_once,) * TILES


def test_another_chip_has_its_own_tiles() -> None:
    small = CostSettings(device=Device(chip("GC2")))
    memory = memory_for(squares(2, dtype=FLOAT), settings=small)
    assert memory.tile_bytes == 262_144
    assert len(memory[0].tiles) == 1216


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.sampled_from([8, 64, 256]), st.integers(1, 3), st.sampled_from(list(Recomputation)))
def test_sums_agree_whatever_the_program(depth: int, width: int, ipus: int, mode: Recomputation) -> None:
    memory = memory_for(squares(max(depth, ipus), width=width, ipus=ipus), recomputation=mode)
    for each in memory:
        assert sum(each.bytes_by_category.values()) == pytest.approx(each.max_tile_bytes)
        assert min(each.tiles) >= 0


@pytest.fixture(scope="module")
def memory() -> IpuMemory:
    return memory_for(squares(4, width=96), optimiser=adamw(FLOAT))[0]


class TestCategoriesOnTiles:
    """What each tile holds of each category, at the moment when the fullest tile is fullest."""

    def test_every_tile_is_covered(self, memory: IpuMemory) -> None:
        assert {len(category.tiles) for category in memory.categories} == {1472}

    def test_tiles_add_up_to_the_category(self, memory: IpuMemory) -> None:
        for category in memory.categories:
            assert sum(category.tiles) == pytest.approx(category.total_bytes), category.name

    def test_the_fullest_tile_is_the_one_reported(self, memory: IpuMemory) -> None:
        assert dict(memory.bytes_on_tile(memory.fullest_tile)) == pytest.approx(dict(memory.bytes_by_category))

    def test_categories_add_up_to_the_fullest_tile(self, memory: IpuMemory) -> None:
        assert sum(memory.bytes_on_tile(memory.fullest_tile).values()) == pytest.approx(memory.max_tile_bytes)

    def test_no_tile_holds_more_than_at_its_own_fullest(self, memory: IpuMemory) -> None:
        for tile in range(0, 1472, 97):
            assert sum(memory.bytes_on_tile(tile).values()) <= memory.tiles[tile] * (1 + 1e-9)
