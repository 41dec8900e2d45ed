"""Stages: stretches of the forward pass on one IPU."""

from __future__ import annotations

import torch
from cost_support import Trained
from published_programs import begin_block, day03
from torch import nn
from tracing_support import traced

from ipu_model.graph import Graph
from ipu_model.stages import Stage, stages_of
from ipu_model.step import Phase, Placement

X = torch.zeros(4, 8)


def chain(*ipus: int) -> Graph:
    """Return one linear layer for each of `ipus`, with a block before it."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in ipus))
    for layer, ipu in zip(model, ipus, strict=True):
        begin_block(layer, ipu)
    return traced(Trained(model), X)


def test_a_model_without_blocks_is_one_stage() -> None:
    assert stages_of(traced(Trained(nn.Linear(8, 8)), X)).stages == (Stage(0, 0),)


def test_each_ipu_is_a_stage() -> None:
    assert [stage.ipu for stage in stages_of(chain(0, 1, 2))] == [0, 1, 2]


def test_blocks_that_follow_one_another_on_one_ipu_are_one_stage() -> None:
    assert [stage.ipu for stage in stages_of(chain(0, 0, 1, 1, 1))] == [0, 1]


def test_stages_may_skip_ipus() -> None:
    assert [stage.ipu for stage in stages_of(chain(0, 3))] == [0, 3]


def test_backward_ops_belong_to_the_stage_of_their_forward_ops() -> None:
    graph = day03()
    stages = stages_of(graph)
    assert len(stages) == 2
    for phase in Phase:
        found = {stages.of_node(n) for n in graph.ops.nodes if n.meta.get("phase") is phase}
        assert found == {0, 1}


def test_inputs_and_weights_belong_to_none() -> None:
    graph = chain(0, 1)
    stages = stages_of(graph)
    assert {stages.of_node(node) for node in graph.ops.nodes if node.op == "placeholder"} == {None}


def test_the_number_of_a_placement() -> None:
    stages = stages_of(chain(0, 1))
    assert (stages.of(Placement("", 0, 0)), stages.of(Placement("", 1, 1)), stages.last) == (0, 1, 1)
