"""Costs of published programs against their measurements on hardware."""

from __future__ import annotations

import pytest
import torch
from cost_support import SETTINGS, cycles

from ipu_model.capture.describe import step_of
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import profile_program
from ipu_model.predict.costs import costs_of, total_of
from ipu_model.predict.device import Cycles
from ipu_model.predict.ops.updates import accumulation_costs, update_costs
from ipu_model.step import FLOAT16, Phase
from published.convolutional import day03, mlperf_program
from published.rows import published

HALF = torch.float16
ADAMW = OptimiserSpec(
    "ADAMW", Hyper(lr=1e-3, weight_decay=0.01), loss_scaling=1000.0, accum_dtype=FLOAT16, first_dtype=FLOAT16
)


@pytest.fixture(scope="module")
def micro_batch() -> Cycles:
    """One more micro-batch on IPU 0, which runs its forward pass again before the backward pass."""
    graph = day03()
    found = costs_of(step_of(graph), SETTINGS)
    accumulation = total_of(c for c in accumulation_costs(step_of(graph), SETTINGS) if c.ipu == 0)
    forward, backward = found.cycles(ipu=0, phase=Phase.FORWARD), found.cycles(ipu=0, phase=Phase.BACKWARD)
    return forward.times(2) + backward + accumulation


PUBLISHED = {row.id: row.value for row in published().rows}


def of_one_more(phase: str) -> float:
    """Return the published cycles of one more micro-batch: a fifth of what eight take more than three."""
    return (PUBLISHED[f"day03.trace.ga8.{phase}"] - PUBLISHED[f"day03.trace.ga3.{phase}"]) / 5


class TestPublishedTrace:
    def test_on_tile_execute(self, micro_batch: Cycles) -> None:
        assert micro_batch.compute == pytest.approx(of_one_more("on_tile_execute"), rel=0.08)

    def test_do_exchange(self, micro_batch: Cycles) -> None:
        assert micro_batch.exchange == pytest.approx(of_one_more("do_exchange"), rel=0.08)

    def test_internal_sync(self, micro_batch: Cycles) -> None:
        assert micro_batch.phases * SETTINGS.device.sync_cycles == pytest.approx(of_one_more("internal_sync"), rel=0.08)

    def test_the_whole_micro_batch(self, micro_batch: Cycles) -> None:
        whole = sum(of_one_more(phase) for phase in ("on_tile_execute", "do_exchange", "internal_sync"))
        assert SETTINGS.device.total(micro_batch) == pytest.approx(whole, rel=0.05)

    def test_weight_update(self) -> None:
        """OnTileExecute that does not grow with accumulation."""
        published = PUBLISHED["day03.trace.ga3.on_tile_execute"] - 3 * of_one_more("on_tile_execute")
        update = update_costs(step_of(day03()), SETTINGS, ADAMW, accumulates=True)
        on_ipu_0 = [cost for cost in update if cost.ipu == 0]
        assert len(on_ipu_0) == 147
        assert total_of(on_ipu_0).compute == pytest.approx(published, rel=0.08)

    def test_ipu_1_has_somewhat_less_to_do(self) -> None:
        found = costs_of(step_of(day03()), SETTINGS)
        first = found.cycles(ipu=0, phase=Phase.FORWARD).times(2) + found.cycles(ipu=0, phase=Phase.BACKWARD)
        assert 0.7 < SETTINGS.device.total(found.cycles(ipu=1)) / SETTINGS.device.total(first) < 0.95

    def test_every_op_has_a_formula(self) -> None:
        assert costs_of(step_of(day03()), SETTINGS).fallbacks == ()

    def test_fp32_takes_almost_twice_as_long(self) -> None:
        half, full = (cycles(costs_of(step_of(day03(dtype)), SETTINGS)) for dtype in (HALF, torch.float32))
        assert 1.6 < full / half < 2.2


@pytest.mark.slow
def test_mlperf_step() -> None:
    """published/other.md, M1: the whole step is published, ten micro-batches with their streams and a collective."""
    (row,) = (each for each in published().rows if each.id == "mlperf.step")
    assert profile_program(mlperf_program()).device_seconds_per_call == pytest.approx(row.value, rel=row.wanted)
