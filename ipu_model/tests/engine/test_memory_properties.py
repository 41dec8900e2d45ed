"""Rules that hold for the memory of every program."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_support import (
    FLOAT,
    HALF,
    adamw,
    graph_of,
    memory_for,
    memory_of_program,
    on_fullest,
    program_of,
    total,
    variable_bytes,
)
from torch import nn
from tracing_support import traced

from ipu_model.batching import Batching
from ipu_model.capture.graph import Graph
from ipu_model.predict.profile import PARAMETERS, IpuMemory
from ipu_model.predict.program import Recomputation
from published.building import begin_block

EXAMPLES = settings(max_examples=8)
TILES = 1472


def network(depth: int, channels: int, batch: int, ipus: int = 1, dtype: torch.dtype = FLOAT) -> Graph:
    """Capture equal blocks of convolution, norm and rectifier, cut into equal stages."""
    blocks = [
        nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(True))
        for _ in range(depth)
    ]
    for ipu in range(1, ipus):
        begin_block(blocks[ipu * depth // ipus], ipu)
    return graph_of(nn.Sequential(*blocks).to(dtype), torch.zeros(batch, channels, 16, 16, dtype=dtype))


def highest(memory: IpuMemory) -> float:
    """Return the most data at any moment, temporary data left out."""
    return max(step.bytes_on_tile - step.temporary_bytes for step in memory.liveness)


# Activations of at least 128 KiB: smaller ones lie on few tiles, and which tile is fullest is then an accident.
DEPTHS, CHANNELS, BATCHES = st.integers(2, 6), st.sampled_from([32, 64]), st.sampled_from([32, 64, 128])


@settings(max_examples=15)
@given(DEPTHS, CHANNELS, BATCHES, st.sampled_from(list(Recomputation)), st.integers(1, 2))
def test_sums_agree(depth: int, channels: int, batch: int, mode: Recomputation, ipus: int) -> None:
    """Categories add up to the fullest tile, on which they are what is reported, and no tile holds less than code."""
    graph = network(depth, channels, batch, ipus)
    memory = memory_for(graph, recomputation=mode, optimiser=adamw(FLOAT))
    assert sum(total(ipu, "variables") for ipu in memory) == variable_bytes(graph)
    for ipu in memory:
        assert ipu.tiles[ipu.fullest_tile] == ipu.max_tile_bytes == max(ipu.tiles)
        by_category, on_tile = dict(ipu.bytes_by_category), dict(ipu.bytes_on_tile(ipu.fullest_tile))
        assert sum(by_category.values()) == pytest.approx(ipu.max_tile_bytes)
        assert on_tile == pytest.approx(by_category)
        peak = max(step.bytes_on_tile for step in ipu.liveness)
        assert ipu.always_live_bytes + peak == pytest.approx(ipu.max_tile_bytes)
        assert ipu.max_tile_bytes >= ipu.always_live_bytes >= on_fullest(ipu, *PARAMETERS)
        for category in ipu.categories:
            assert len(category.tiles) == TILES
            assert sum(category.tiles) == pytest.approx(category.total_bytes), category.name
        code = next(category for category in ipu.categories if category.name == "internal exchange code")
        assert code.total_bytes == pytest.approx(code.bytes_on_fullest_tile * TILES)
        assert min(ipu.tiles) > code.bytes_on_fullest_tile
        for tile in range(0, TILES, 97):
            assert sum(ipu.bytes_on_tile(tile).values()) <= ipu.tiles[tile] * (1 + 1e-9)


@EXAMPLES
@given(st.integers(2, 5), CHANNELS, st.integers(2, 64))
def test_accumulation_beyond_two_is_free(depth: int, channels: int, accumulation: int) -> None:
    program = program_of(network(depth, channels, 8, ipus=2), accumulation=2, optimiser=adamw(FLOAT))
    more = replace(program, batching=Batching(accumulation=accumulation))
    assert memory_of_program(more) == memory_of_program(program)


@EXAMPLES
@given(DEPTHS, CHANNELS, BATCHES, st.integers(2, 4), st.integers(1, 2))
def test_a_larger_batch_has_no_less_data(depth: int, channels: int, batch: int, factor: int, ipus: int) -> None:
    """Of data: a plan for a larger batch may take less temporary memory."""
    small, large = (memory_for(network(depth, channels, b, ipus)) for b in (batch, factor * batch))
    assert all(highest(many) >= highest(few) for few, many in zip(small, large))


@EXAMPLES
@given(st.integers(2, 6), CHANNELS, BATCHES, st.integers(2, 3))
def test_recomputation_lowers_every_stage_but_the_last(depth: int, channels: int, batch: int, ipus: int) -> None:
    graph = network(max(depth, 2 * ipus), channels, batch, ipus)
    plain, again = (memory_for(graph, recomputation=r) for r in (Recomputation.NONE, Recomputation.PIPELINE))
    for before, after in list(zip(plain, again))[:-1]:
        assert highest(after) <= highest(before)
        assert total(after, "stashes") <= total(before, "stashes")
    assert again[ipus - 1].tiles == plain[ipus - 1].tiles


@EXAMPLES
@given(DEPTHS, CHANNELS, BATCHES, st.sampled_from([Recomputation.NONE, Recomputation.ALL]))
def test_half_precision_takes_no_more(depth: int, channels: int, batch: int, mode: Recomputation) -> None:
    half, full = (
        memory_for(network(depth, channels, batch, dtype=d), recomputation=mode, optimiser=adamw(d))[0]
        for d in (HALF, FLOAT)
    )
    assert highest(half) <= highest(full)
    assert total(half, *PARAMETERS) < total(full, *PARAMETERS)
    assert half.max_tile_bytes <= full.max_tile_bytes * 1.05  # another plan may have a phase more


@EXAMPLES
@given(st.integers(2, 8), st.sampled_from([64, 256]), st.sampled_from([64, 512]))
def test_inference_takes_less_than_training(depth: int, width: int, batch: int) -> None:
    layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    trained = memory_for(graph_of(layers, torch.zeros(batch, width)))
    inference = traced(layers, torch.zeros(batch, width), training=False)
    used = memory_for(inference, training=False, optimiser=None, accumulation=1)
    assert used.max_tile_bytes < trained.max_tile_bytes
