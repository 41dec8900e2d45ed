"""Stages: stretches of the forward pass on one IPU."""

from __future__ import annotations

import torch
from cost_support import Trained
from torch import nn
from tracing_support import traced

from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.step import Phase, Stage
from published.building import begin_block
from published.convolutional import day03

X = torch.zeros(4, 8)


def chain(*ipus: int) -> Graph:
    """Return one linear layer for each of `ipus`, with a block before it."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in ipus))
    for layer, ipu in zip(model, ipus, strict=True):
        begin_block(layer, ipu)
    return traced(Trained(model), X)


def test_a_model_without_blocks_is_one_stage() -> None:
    assert step_of(traced(Trained(nn.Linear(8, 8)), X)).stages == (Stage(0, 0),)


def test_each_ipu_is_a_stage() -> None:
    assert [stage.ipu for stage in step_of(chain(0, 1, 2)).stages] == [0, 1, 2]


def test_blocks_that_follow_one_another_on_one_ipu_are_one_stage() -> None:
    assert [stage.ipu for stage in step_of(chain(0, 0, 1, 1, 1)).stages] == [0, 1]


def test_stages_may_skip_ipus() -> None:
    assert [stage.ipu for stage in step_of(chain(0, 3)).stages] == [0, 3]


def test_backward_ops_belong_to_the_stage_of_their_forward_ops() -> None:
    step = step_of(day03())
    assert len(step.stages) == 2
    for phase in Phase:
        assert {op.stage for op in step.ops if op.phase is phase} == {0, 1}
