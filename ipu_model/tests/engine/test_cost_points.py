"""Sets of points and beam search: rounds that depend on one another, everything against everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cost_support import GC200, costed, distinct_phases
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ipu_model.capture.device_ops.ctc import beam_search
from ipu_model.capture.device_ops.points import farthest_points, nearest_points
from ipu_model.predict.device import Element
from ipu_model.predict.ops.losses import BeamSearch, decoded
from ipu_model.predict.ops.spatial import Neighbours, Sampling, farthest, nearest

FLOAT = Element.FLOAT
CLOUD = Sampling(points=4096, features=3, samples=2, picks=64)
SIZES = st.integers(1, 500)


class Calling(nn.Module):
    """Calls a function of its inputs; the weight is there for the wrapper to train."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(1))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.weight * sum(result.float().sum() for result in self.function(*inputs))


def cycles_of(name: str, function, *inputs: Tensor) -> float:
    found = costed(Calling(function), *inputs)
    assert not found.fallbacks
    (op,) = [op for op in found.ops if name in op.target]
    return GC200.total(op.work.cycles)


class TestSampling:
    def test_every_pick_takes_the_same_and_they_follow_one_another(self) -> None:
        one, many = (farthest(GC200, replace(CLOUD, picks=picks), FLOAT) for picks in (1, 64))
        assert many.cycles == one.cycles.times(64)

    @given(SIZES, SIZES)
    def test_more_points_or_features_never_take_fewer_cycles(self, count: int, features: int) -> None:
        problem = Sampling(count, features, 1, 8)
        least = GC200.total(farthest(GC200, problem, FLOAT).cycles)
        for more in (replace(problem, points=count + 1), replace(problem, features=features + 1)):
            assert GC200.total(farthest(GC200, more, FLOAT).cycles) >= least

    def test_the_op_takes_as_long_as_its_longest_sample(self) -> None:
        def picking(*counts: int) -> float:
            return cycles_of(
                "farthest", lambda x: [farthest_points(x, [0, 8, 20], list(counts), None)], torch.rand(20, 3)
            )

        assert picking(2, 5) == picking(1, 5)
        assert picking(2, 5) < picking(2, 6)


class TestNeighbours:
    @given(SIZES, SIZES, st.integers(1, 20))
    def test_more_rows_on_either_side_never_take_fewer_cycles(self, rows: int, others: int, features: int) -> None:
        problem = Neighbours(rows, others, features)
        least = GC200.total(nearest(GC200, problem, FLOAT).cycles)
        for more in (replace(problem, rows=2 * rows), replace(problem, others=2 * others)):
            assert GC200.total(nearest(GC200, more, FLOAT).cycles) >= least

    def test_a_row_with_many_others_is_shared_by_tiles(self) -> None:
        """A million distances of three features on one tile would be 3 x 2^20 / 12 vectors of six cycles and more."""
        work = nearest(GC200, Neighbours(1, 1 << 20, 3), FLOAT)
        assert work.cycles.phases == 2
        assert work.cycles.compute < (3 << 20) / 12 * 6 / 100

    def test_the_op_takes_longer_for_more_rows(self) -> None:
        def among(rows: int) -> float:
            inputs = torch.rand(20, 3), torch.rand(rows, 3)
            return cycles_of("nearest", lambda x, y: [nearest_points(x, y, None, None)], *inputs)

        assert among(15) < among(1500)


class TestBeamSearch:
    @given(SIZES, st.integers(1, 40), st.integers(2, 60), st.integers(1, 60))
    def test_more_of_anything_never_takes_fewer_cycles(
        self, steps: int, samples: int, classes: int, beams: int
    ) -> None:
        problem = BeamSearch(steps, samples, classes, beams, 1)
        least = GC200.total(decoded(GC200, problem, FLOAT).cycles)
        for more in ({"steps": steps + 1}, {"samples": 2 * samples}, {"classes": 2 * classes}, {"beams": 2 * beams}):
            assert GC200.total(decoded(GC200, replace(problem, **more), FLOAT).cycles) >= least

    @pytest.mark.parametrize(("steps", "beams"), [(100, 16), (50, 160)])
    def test_the_op_takes_longer_for_more_steps_or_beams(self, steps: int, beams: int) -> None:
        def decoding_of(steps: int, beams: int) -> float:
            inputs = torch.rand(steps, 4, 30), torch.ones(4).int()
            return cycles_of("beam_search", lambda x, n: beam_search(x, n, 0, beams, 2), *inputs)

        assert decoding_of(50, 16) < decoding_of(steps, beams)

    def test_the_code_of_a_step_exists_once(self) -> None:
        def phases(steps: int) -> int:
            inputs = torch.rand(steps, 4, 30), torch.ones(4).int()
            return distinct_phases(Calling(lambda x, n: beam_search(x, n, 0, 16, 2)), *inputs)

        assert phases(50) == pytest.approx(phases(400), abs=1)
