"""Memory that follows the number of parameters: bytes per parameter, sharding, streaming memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_support import FLOAT, HALF, adamw, graph_of, linear, memory_for, on_fullest, squares, total
from torch import nn

from ipu_model.capture.graph import dtype_of
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.profile import PARAMETERS
from ipu_model.predict.program import Location, Locations

SIDE = 512
PARAMETER_COUNT = SIDE * SIDE
PLAIN, MOMENTUM = Hyper(lr=0.1), Hyper(lr=0.1, momentum=0.9)
OFF = Location(on_chip=False)


def spec(family: str, hyper: Hyper, state: torch.dtype, second: torch.dtype = FLOAT) -> OptimiserSpec:
    kept = dtype_of(state)
    return OptimiserSpec(
        family, hyper, accum_dtype=kept, velocity_dtype=kept, first_dtype=kept, second_dtype=dtype_of(second)
    )


def parameter_bytes(weight: torch.dtype, optimiser: OptimiserSpec, accumulation: int = 4) -> float:
    memory = memory_for(linear(SIDE, SIDE, dtype=weight), optimiser=optimiser, accumulation=accumulation)
    return total(memory[0], *PARAMETERS) / PARAMETER_COUNT


# Bytes per parameter with gradient accumulation (hardware reference, C4), for fp32 everything; fp16 weights with
# PopTorch's default types of state; fp16 weights, accumulators and first moments with fp32 second moments. The default
# type of a combined tensor is the weight's there, that of all others fp32.
TABLE: list[tuple[str, Hyper, torch.dtype, torch.dtype, float]] = [
    ("SGD1", PLAIN, FLOAT, FLOAT, 8), ("SGD1", PLAIN, HALF, FLOAT, 6), ("SGD1", PLAIN, HALF, HALF, 4),
    ("SGD2", PLAIN, FLOAT, FLOAT, 8), ("SGD2", PLAIN, HALF, FLOAT, 6), ("SGD2", PLAIN, HALF, HALF, 4),
    ("SGD1", MOMENTUM, FLOAT, FLOAT, 8), ("SGD1", MOMENTUM, HALF, HALF, 4),
    ("SGD2", MOMENTUM, FLOAT, FLOAT, 12), ("SGD2", MOMENTUM, HALF, FLOAT, 10), ("SGD2", MOMENTUM, HALF, HALF, 6),
    ("ADAM", PLAIN, FLOAT, FLOAT, 16), ("ADAM", PLAIN, HALF, FLOAT, 14), ("ADAM", PLAIN, HALF, HALF, 10),
    ("ADAMW", PLAIN, FLOAT, FLOAT, 16), ("ADAMW", PLAIN, HALF, FLOAT, 14), ("ADAMW", PLAIN, HALF, HALF, 10),
]  # fmt: skip


@pytest.mark.parametrize(("family", "hyper", "weight", "state", "expected"), TABLE)
def test_bytes_per_parameter(
    family: str, hyper: Hyper, weight: torch.dtype, state: torch.dtype, expected: float
) -> None:
    # Adam's step counter, one number, is not of a weight's size.
    assert parameter_bytes(weight, spec(family, hyper, state)) == expected


@pytest.mark.parametrize(
    ("family", "hyper", "expected"), [("SGD2", PLAIN, 4), ("SGD2", MOMENTUM, 8), ("ADAM", PLAIN, 12)]
)
def test_without_accumulation_there_is_no_accumulator(family: str, hyper: Hyper, expected: float) -> None:
    assert parameter_bytes(FLOAT, spec(family, hyper, FLOAT), accumulation=1) == expected


def test_without_accumulation_gradients_wait_for_the_update() -> None:
    """Two weights: at the first update both gradients are there; with accumulation, never more than one."""
    graph = squares(2, width=SIDE, batch=1)
    each = PARAMETER_COUNT * 4
    plain = memory_for(graph, accumulation=1)[0]
    accumulated = memory_for(graph, accumulation=2)[0]
    first_update = next(step for step in plain.liveness if step.phase == "update")
    assert first_update.bytes_on_tile - first_update.temporary_bytes == pytest.approx(2 * each / 1472, rel=0.1)
    assert all(step.bytes_on_tile == step.temporary_bytes for step in accumulated.liveness if step.phase == "update")


def test_variables_that_are_not_trained_have_no_state() -> None:
    model = nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), nn.Linear(SIDE, SIDE, bias=False))
    model[0].requires_grad_(False)
    memory = memory_for(graph_of(model, torch.zeros(4, SIDE)), optimiser=adamw(FLOAT))
    assert total(memory[0], "variables") == 2 * PARAMETER_COUNT * 4
    assert total(memory[0], "optimiser state") == PARAMETER_COUNT * 8


def test_buffers_are_variables() -> None:
    memory = memory_for(graph_of(nn.BatchNorm1d(SIDE), torch.zeros(4, SIDE)))
    assert total(memory[0], "variables") == 4 * SIDE * 4  # scale, shift, mean, variance


class TestSharding:
    def memory(self, replicas: int, **locations: Location) -> Any:
        return memory_for(
            linear(SIDE, SIDE), optimiser=adamw(FLOAT), replicas=replicas, locations=Locations(**locations)
        )[0]

    @settings(max_examples=10, deadline=None)
    @given(st.sampled_from([2, 4, 8, 16]))
    def test_each_replica_keeps_its_part(self, replicas: int) -> None:
        memory = self.memory(replicas, optimiser=Location(sharded=True))
        assert total(memory, "optimiser state") == PARAMETER_COUNT * 8 / replicas
        assert total(memory, "variables") == PARAMETER_COUNT * 4

    def test_one_replica_keeps_all(self) -> None:
        assert total(self.memory(1, optimiser=Location(sharded=True)), "optimiser state") == PARAMETER_COUNT * 8

    def test_small_tensors_are_not_shared_out(self) -> None:
        location = Location(sharded=True, least_sharded=PARAMETER_COUNT + 1)
        assert total(self.memory(4, optimiser=location), "optimiser state") == PARAMETER_COUNT * 8

    def test_a_sharded_weight_is_put_together_while_it_is_used(self) -> None:
        whole, sharded = self.memory(4), self.memory(4, weights=Location(sharded=True))
        assert total(sharded, "variables") == PARAMETER_COUNT * 4 / 4
        most = max(step.temporary_bytes for step in sharded.liveness)
        assert most > max(step.temporary_bytes for step in whole.liveness)


class TestStreamingMemory:
    LAYERS = 4

    def memory(self, **locations: Location) -> Any:
        return memory_for(squares(self.LAYERS, width=SIDE), optimiser=adamw(FLOAT), locations=Locations(**locations))

    @pytest.mark.parametrize(
        ("where", "category", "per_parameter"),
        [
            ("optimiser", "optimiser state", 8),
            ("accumulators", "gradient accumulators", 4),
            ("weights", "variables", 4),
        ],
    )
    def test_bytes_move_off_the_tiles(self, where: str, category: str, per_parameter: int) -> None:
        on_chip, off_chip = self.memory(), self.memory(**{where: OFF})
        moved = self.LAYERS * PARAMETER_COUNT * per_parameter
        assert on_chip.off_chip_bytes == 0
        assert off_chip.off_chip_bytes == total(on_chip[0], category) == moved
        assert total(off_chip[0], category) == 0

    def test_state_comes_back_for_the_update_of_its_tensor(self) -> None:
        """The working buffer holds the state of one weight at a time, not of all four."""
        on_chip, off_chip = self.memory()[0], self.memory(optimiser=OFF)[0]
        more = [
            away.temporary_bytes - here.temporary_bytes
            for here, away in zip(on_chip.liveness, off_chip.liveness)
            if here.phase == "update"
        ]
        assert more == pytest.approx([PARAMETER_COUNT * 8 / 1472] * self.LAYERS, rel=0.02)

    def test_a_weight_comes_back_whole_for_every_op_that_reads_it(self) -> None:
        """Even if each of four replicas keeps a quarter of it in streaming memory."""
        options = {"replicas": 4, "optimiser": adamw(FLOAT)}
        here = memory_for(linear(SIDE, SIDE), **options)[0]
        away = memory_for(
            linear(SIDE, SIDE), locations=Locations(weights=Location(on_chip=False, sharded=True)), **options
        )
        assert away.off_chip_bytes == PARAMETER_COUNT * 4 / 4
        more = away[0].liveness[0].temporary_bytes - here.liveness[0].temporary_bytes
        assert more == pytest.approx(PARAMETER_COUNT * 4 / 1472, rel=0.1)

    def test_small_tensors_stay(self) -> None:
        location = Location(on_chip=False, least_off_chip=PARAMETER_COUNT + 1)
        assert self.memory(optimiser=location).off_chip_bytes == 0

    def test_sharding_and_streaming_memory_together(self) -> None:
        memory = memory_for(
            linear(SIDE, SIDE), optimiser=adamw(FLOAT), replicas=4,
            locations=Locations(optimiser=Location(on_chip=False, sharded=True)),
        )  # fmt: skip
        assert memory.off_chip_bytes == PARAMETER_COUNT * 8 / 4

    def test_the_fullest_tile_gets_emptier(self) -> None:
        freed = self.memory()[0].max_tile_bytes - self.memory(optimiser=OFF)[0].max_tile_bytes
        assert freed == pytest.approx(on_fullest(self.memory()[0], "optimiser state"), rel=0.3)
