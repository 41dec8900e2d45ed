"""Accumulation and optimiser cost of trainable tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cost_support import SETTINGS, Trained, stepped
from torch import nn

from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.ops.updates import accumulation_costs, update_costs, variable_ipus
from ipu_model.step import FLOAT16
from published.building import begin_block

ADAMW = OptimiserSpec(
    "ADAMW", Hyper(lr=1e-3, weight_decay=0.01), loss_scaling=1000.0, accum_dtype=FLOAT16, first_dtype=FLOAT16
)
MODEL = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
begin_block(MODEL[1], 1)
STEP = stepped(Trained(MODEL), torch.zeros(8, 64))
# A variable is where it is first used.
IPUS = {"module.0.weight": 0, "module.0.bias": 0, "module.1.weight": 1, "module.1.bias": 1}


def test_each_gradient_is_accumulated_where_its_variable_is() -> None:
    assert variable_ipus(STEP) == IPUS
    assert {cost.variable: cost.ipu for cost in accumulation_costs(STEP, SETTINGS)} == IPUS


def test_frozen_weights_are_not_updated() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model[0].requires_grad_(False)
    costs = update_costs(stepped(Trained(model), torch.zeros(8, 64)), SETTINGS, ADAMW, accumulates=True)
    assert [cost.variable for cost in costs] == ["module.1.weight", "module.1.bias"]


@pytest.mark.parametrize("family", ["SGD1", "SGD2", "ADAM", "ADAMW", "RMSPROP", "RMSPROP_CENTERED", "LAMB"])
def test_every_family_has_a_cost(family: str) -> None:
    costs = update_costs(STEP, SETTINGS, OptimiserSpec(family, Hyper(lr=0.1, momentum=0.9)), accumulates=True)
    assert len(costs) == 4
    assert all(cost.work.cycles.compute > 0 for cost in costs)


def test_groups_have_their_own_numbers() -> None:
    spec = OptimiserSpec("SGD2", Hyper(lr=0.1), (Hyper(lr=0.1, weight_decay=0.1),))
    plain = update_costs(STEP, SETTINGS, spec, accumulates=False)
    decayed = update_costs(STEP, SETTINGS, spec, accumulates=False, group_of={"module.0.weight": 0})
    assert decayed[0].work.cycles.compute > plain[0].work.cycles.compute
    assert decayed[1:] == plain[1:]


def test_clipping_adds_a_norm_and_a_pass_that_scales_each_gradient() -> None:
    """Of four tensors; scaling a tensor of one vector a worker takes 11 + 6 (20 + 2) cycles, here 64 elements."""
    plain = update_costs(STEP, SETTINGS, ADAMW, accumulates=True)
    clipped = update_costs(STEP, SETTINGS, replace(ADAMW, max_grad_norm=1.0), accumulates=True)
    for before, after in zip(plain, clipped, strict=True):
        assert after.work.cycles.compute - before.work.cycles.compute > 11 + 6 * (20 + 2)
        assert after.work.cycles.phases > before.work.cycles.phases  # the factor goes to all tiles
