"""Graphs derived from captured ones cost what the changed program's own capture costs."""

from __future__ import annotations

import pytest
import torch
from cost_support import SETTINGS, Trained, cycles
from published_programs import day03
from torch import nn
from tracing_support import traced

from ipu_model.capture.describe import step_of
from ipu_model.predict.costs import costs_of
from ipu_model.step import Placement
from ipu_model.transform import in_half_precision, placed, with_byte_inputs

HALF, FLOAT = torch.float16, torch.float32


def small(dtype: torch.dtype):
    module = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    return traced(Trained(module).to(dtype), torch.zeros(4, 3, 8, 8, dtype=dtype))


class TestHalfPrecision:
    def test_a_small_network_costs_what_its_half_capture_costs(self) -> None:
        assert cycles(costs_of(step_of(in_half_precision(small(FLOAT))))) == pytest.approx(
            cycles(costs_of(step_of(small(HALF)))), rel=0.03
        )

    def test_resnet_101_costs_what_its_half_capture_costs(self) -> None:
        derived, captured = (
            costs_of(step_of(in_half_precision(day03(FLOAT))), SETTINGS),
            costs_of(step_of(day03(HALF)), SETTINGS),
        )
        assert cycles(derived) == pytest.approx(cycles(captured), rel=0.001)

    def test_variables_and_inputs_shrink_with_it(self) -> None:
        graph = in_half_precision(small(FLOAT))
        assert {v.spec.dtype for v in graph.variables if v.spec.dtype.is_floating_point} == {HALF}
        assert graph.inputs[0].dtype is HALF

    def test_the_captured_graph_stays_as_it_is(self) -> None:
        graph = small(FLOAT)
        in_half_precision(graph)
        assert {node.meta["spec"].dtype for node in graph.ops.nodes if node.name.startswith("input")} == {FLOAT}

    def test_nodes_keep_their_names(self) -> None:
        graph = small(FLOAT)
        assert [n.name for n in in_half_precision(graph).ops.nodes] == [n.name for n in graph.ops.nodes]


def test_byte_inputs_are_a_quarter_of_floats() -> None:
    graph = small(FLOAT)
    assert with_byte_inputs(graph).inputs[0].bytes * 4 == graph.inputs[0].bytes


def test_labels_stay_as_they_are() -> None:
    graph = day03()
    assert with_byte_inputs(graph).inputs[1] == graph.inputs[1]


def test_placing_moves_forward_and_backward_ops_of_a_scope() -> None:
    graph = placed(small(FLOAT), {"module.4": Placement("1", 1, 1)})
    moved = [n for n in graph.ops.nodes if "placement" in n.meta and n.meta["placement"].ipu == 1]
    on_1 = {(n.meta["phase"].value, n.meta["scope"]) for n in moved}
    assert on_1 == {("forward", "module.4"), ("backward", "module.4")}
    assert graph.ipus == (0, 1)
