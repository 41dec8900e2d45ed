"""Accumulation and optimiser cost of trainable tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cost_support import SETTINGS, Trained, stepped
from torch import nn

from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.ops.updates import accumulation_costs, update_costs, variable_ipus
from ipu_model.step import FLOAT16, Step
from published.building import begin_block

HALF = torch.float16
ADAMW = OptimiserSpec(
    "ADAMW", Hyper(lr=1e-3, weight_decay=0.01), loss_scaling=1000.0, accum_dtype=FLOAT16, first_dtype=FLOAT16
)


class TestVariables:
    def pipelined(self) -> Step:
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        begin_block(model[1], 1)
        return stepped(Trained(model), torch.zeros(8, 64))

    def test_a_variable_is_where_it_is_first_used(self) -> None:
        assert variable_ipus(self.pipelined()) == {
            "module.0.weight": 0, "module.0.bias": 0, "module.1.weight": 1, "module.1.bias": 1,
        }  # fmt: skip

    def test_each_gradient_is_accumulated(self) -> None:
        costs = accumulation_costs(self.pipelined(), SETTINGS)
        assert {(c.variable, c.ipu) for c in costs} == set(variable_ipus(self.pipelined()).items())

    def test_frozen_weights_are_not_updated(self) -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        model[0].requires_grad_(False)
        step = stepped(Trained(model), torch.zeros(8, 64))
        names = [c.variable for c in update_costs(step, SETTINGS, ADAMW, accumulates=True)]
        assert names == ["module.1.weight", "module.1.bias"]

    @pytest.mark.parametrize("family", ["SGD1", "SGD2", "ADAM", "ADAMW", "RMSPROP", "RMSPROP_CENTERED", "LAMB"])
    def test_every_family_has_a_cost(self, family: str) -> None:
        spec = OptimiserSpec(family, Hyper(lr=0.1, momentum=0.9))
        costs = update_costs(self.pipelined(), SETTINGS, spec, accumulates=True)
        assert len(costs) == 4
        assert all(cost.work.cycles.compute > 0 for cost in costs)

    def test_groups_have_their_own_numbers(self) -> None:
        spec = OptimiserSpec("SGD2", Hyper(lr=0.1), (Hyper(lr=0.1, weight_decay=0.1),))
        step = self.pipelined()
        plain = update_costs(step, SETTINGS, spec, accumulates=False)
        decayed = update_costs(step, SETTINGS, spec, accumulates=False, group_of={"module.0.weight": 0})
        assert decayed[0].work.cycles.compute > plain[0].work.cycles.compute
        assert decayed[1:] == plain[1:]

    def test_clipping_adds_a_norm_and_a_pass_that_scales_each_gradient(self) -> None:
        """Of four tensors; scaling a tensor of one vector a worker takes 11 + 6 (20 + 2) cycles, here 64 elements."""
        step, clipped = self.pipelined(), replace(ADAMW, max_grad_norm=1.0)
        plain = update_costs(step, SETTINGS, ADAMW, accumulates=True)
        more = update_costs(step, SETTINGS, clipped, accumulates=True)
        for without, with_norm in zip(plain, more, strict=True):
            before, after = without.work.cycles, with_norm.work.cycles
            assert after.compute - before.compute > 11 + 6 * (20 + 2)
            assert after.phases > before.phases  # the factor goes to all tiles
