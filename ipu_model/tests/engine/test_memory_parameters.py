"""Memory that follows the number of parameters: bytes per parameter, sharding, streaming memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memory_support import FLOAT, HALF, adamw, graph_of, linear, memory_for, on_fullest, squares, total
from torch import nn

from ipu_model.capture.graph import dtype_of
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.profile import PARAMETERS, Memory
from ipu_model.predict.program import Location, Locations

SIDE, TILES = 512, 1472
COUNT = SIDE * SIDE
PLAIN, MOMENTUM = Hyper(lr=0.1), Hyper(lr=0.1, momentum=0.9)
STATE = "optimiser state"


# Bytes per parameter with gradient accumulation (hardware reference, C4), for fp32 everything; fp16 weights with
# PopTorch's default types of state; fp16 weights, accumulators and first moments with fp32 second moments. The default
# type of a combined tensor is the weight's there, that of all others fp32. Then without accumulation: no accumulator.
@pytest.mark.parametrize(
    ("family", "hyper", "accumulation", "expected"),
    [
        ("SGD1", PLAIN, 4, (8, 6, 4)),
        ("SGD2", PLAIN, 4, (8, 6, 4)),
        ("SGD1", MOMENTUM, 4, (8, None, 4)),
        ("SGD2", MOMENTUM, 4, (12, 10, 6)),
        ("ADAM", PLAIN, 4, (16, 14, 10)),
        ("ADAMW", PLAIN, 4, (16, 14, 10)),
        ("SGD2", PLAIN, 1, (4, None, None)),
        ("SGD2", MOMENTUM, 1, (8, None, None)),
        ("ADAM", PLAIN, 1, (12, None, None)),
    ],
)
def test_bytes_per_parameter(family: str, hyper: Hyper, accumulation: int, expected: tuple[float | None, ...]) -> None:
    """Adam's step counter, one number, is not of a weight's size."""
    for (weight, state), size in zip([(FLOAT, FLOAT), (HALF, FLOAT), (HALF, HALF)], expected):
        if size is not None:
            kept = dtype_of(state)
            types = {"accum_dtype": kept, "velocity_dtype": kept, "first_dtype": kept, "second_dtype": dtype_of(FLOAT)}
            optimiser = OptimiserSpec(family, hyper, **types)
            memory = memory_for(linear(SIDE, SIDE, dtype=weight), optimiser=optimiser, accumulation=accumulation)
            assert total(memory[0], *PARAMETERS) / COUNT == size


def test_without_accumulation_gradients_wait_for_the_update() -> None:
    """Two weights: at the first update both gradients are there; with accumulation, never more than one."""
    graph = squares(2, width=SIDE, batch=1)
    plain, accumulated = (memory_for(graph, accumulation=count)[0] for count in (1, 2))
    first_update = next(step for step in plain.liveness if step.phase == "update")
    assert first_update.bytes_on_tile - first_update.temporary_bytes == pytest.approx(2 * COUNT * 4 / TILES, rel=0.1)
    assert all(step.bytes_on_tile == step.temporary_bytes for step in accumulated.liveness if step.phase == "update")


def test_variables_that_are_not_trained_have_no_state_and_buffers_are_variables() -> None:
    model = nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), nn.Linear(SIDE, SIDE, bias=False), nn.BatchNorm1d(SIDE))
    model[0].requires_grad_(False)
    memory = memory_for(graph_of(model, torch.zeros(4, SIDE)), optimiser=adamw(FLOAT))
    norm = 4 * SIDE  # scale, shift, mean, variance
    assert total(memory[0], "variables") == (2 * COUNT + norm) * 4
    assert total(memory[0], STATE) == (COUNT + norm // 2) * 8


def one_layer(replicas: int = 4, **locations: Location) -> Memory:
    return memory_for(linear(SIDE, SIDE), optimiser=adamw(FLOAT), replicas=replicas, locations=Locations(**locations))


def most_temporary(memory: Memory) -> float:
    return max(step.temporary_bytes for step in memory[0].liveness)


class TestSharding:
    @pytest.mark.parametrize(
        ("replicas", "least", "parts"), [(2, 0, 2), (16, 0, 16), (1, 0, 1), (4, COUNT, 4), (4, COUNT + 1, 1)]
    )
    def test_each_replica_keeps_its_part_of_what_is_not_small(self, replicas: int, least: int, parts: int) -> None:
        memory = one_layer(replicas, optimiser=Location(sharded=True, least_sharded=least))[0]
        assert total(memory, STATE) == COUNT * 8 / parts
        assert total(memory, "variables") == COUNT * 4

    def test_a_sharded_weight_is_put_together_while_it_is_used(self) -> None:
        whole, sharded = one_layer(), one_layer(weights=Location(sharded=True))
        assert total(sharded[0], "variables") == COUNT * 4 / 4
        assert most_temporary(sharded) > most_temporary(whole)

    def test_it_goes_together_with_streaming_memory(self) -> None:
        """Each of four replicas keeps a quarter there; a weight comes back whole for every op that reads it."""
        away = Location(on_chip=False, sharded=True)
        assert one_layer(optimiser=away).off_chip_bytes == COUNT * 8 / 4
        here, memory = one_layer(), one_layer(weights=away)
        assert memory.off_chip_bytes == COUNT * 4 / 4
        more = memory[0].liveness[0].temporary_bytes - here[0].liveness[0].temporary_bytes
        assert more == pytest.approx(COUNT * 4 / TILES, rel=0.1)


class TestStreamingMemory:
    LAYERS = 4

    def memory(self, least: int = 2, **off_chip: bool) -> Any:
        locations = Locations(**{name: Location(on_chip=False, least_off_chip=least) for name in off_chip})
        return memory_for(squares(self.LAYERS, width=SIDE), optimiser=adamw(FLOAT), locations=locations)

    @pytest.mark.parametrize(
        ("where", "category", "per_parameter"),
        [("optimiser", STATE, 8), ("accumulators", "gradient accumulators", 4), ("weights", "variables", 4)],
    )
    def test_bytes_move_off_the_tiles_unless_tensors_are_small(
        self, where: str, category: str, per_parameter: int
    ) -> None:
        on_chip, off_chip = self.memory(), self.memory(**{where: True})
        assert on_chip.off_chip_bytes == 0
        assert off_chip.off_chip_bytes == total(on_chip[0], category) == self.LAYERS * COUNT * per_parameter
        assert total(off_chip[0], category) == 0
        assert self.memory(COUNT + 1, **{where: True}).off_chip_bytes == 0

    def test_state_comes_back_for_the_update_of_its_tensor(self) -> None:
        """The working buffer holds the state of one weight at a time, not of all four."""
        on_chip, off_chip = self.memory()[0], self.memory(optimiser=True)[0]
        more = [
            away.temporary_bytes - here.temporary_bytes
            for here, away in zip(on_chip.liveness, off_chip.liveness)
            if here.phase == "update"
        ]
        assert more == pytest.approx([COUNT * 8 / TILES] * self.LAYERS, rel=0.02)
        freed = on_chip.max_tile_bytes - off_chip.max_tile_bytes
        assert freed == pytest.approx(on_fullest(on_chip, STATE), rel=0.3)

    def test_an_accumulator_comes_back_for_every_addition_and_the_update(self) -> None:
        on_chip, off_chip = self.memory()[0], self.memory(accumulators=True)[0]
        more = [away.temporary_bytes - here.temporary_bytes for here, away in zip(on_chip.liveness, off_chip.liveness)]
        brought = [extra for extra in more if extra]
        assert brought == pytest.approx([COUNT * 4 / TILES] * 2 * self.LAYERS, rel=0.02)
