"""A step describes its captured graph faithfully, and can also be written by hand."""

from __future__ import annotations

import importlib
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from tracing_support import traced

import poptorch
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph, info_of, storage_roots
from ipu_model.step import FLOAT32, Op, Phase, Placement, Ref, Source, Step, Tensor, step_of_ops, with_ops


class Net(nn.Module):
    """A convolution with a norm on one IPU, and pooling with a linear layer on another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("a", ipu_id=0):
            x = poptorch.set_available_memory(self.conv(x), 0.25)
            x = torch.relu_(self.norm(x))
        with poptorch.Block("b", ipu_id=1):
            x = self.linear(nn.functional.max_pool2d(x, 6).flatten(1))
            return x, nn.functional.cross_entropy(x, labels)


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = Net()
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    training.compile(torch.randn(8, 3, 8, 8), torch.zeros(8, dtype=torch.int64))
    assert training._compiled is not None
    return training._compiled.graph


def test_every_op_has_the_stage_and_the_operands_of_its_node(graph: Graph) -> None:
    step = step_of(graph)
    nodes = {node.name: node for node in graph.ops.nodes}
    assert [stage.ipu for stage in step.stages] == [0, 1]
    for op in step.ops:
        assert op.stage == op.ipu == info_of(nodes[op.name]).placement.ipu
        assert list(op.reads) == [source.name for source in nodes[op.name].all_input_nodes]


def test_the_line_of_a_reloaded_module_is_that_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited_model.py"

    def line_of(expression: str) -> str:
        file.write_text(
            f"import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        {expression}\n"
        )
        module = importlib.import_module("edited_model")
        (op,) = step_of(traced(importlib.reload(module).Model(), torch.ones(2), training=False)).ops
        return op.line

    assert line_of("return x.sin()") == "line 4 of forward in edited_model.py: return x.sin()"
    assert line_of("return torch.cos(x)") == "line 4 of forward in edited_model.py: return torch.cos(x)"


def test_every_tensor_lies_in_the_storage_that_its_node_has(graph: Graph) -> None:
    step, roots = step_of(graph), storage_roots(graph.ops)
    by_name = {node.name: root for node, root in roots.items()}
    for name, tensor in step.tensors.items():
        assert tensor.storage == by_name[name].name
        assert tensor.storage in step.storages


def test_results_of_one_op_are_tensors_of_that_op(graph: Graph) -> None:
    step = step_of(graph)
    norm = next(op for op in step.ops if op.kind == "native_batch_norm")
    assert [result.index for result in norm.results if result is not None] == [0, 1, 2]
    assert {step.tensors[name].producer for name in step.tensors if name.startswith("getitem")} >= {norm.name}


def test_a_gradient_has_the_planning_hints_of_its_forward_op(graph: Graph) -> None:
    proportions = {
        op.kind: op.hints.available_memory_proportion for op in step_of(graph).ops if op.kind.startswith("convolution")
    }
    assert proportions == {"convolution": 0.25, "convolution_backward": 0.25}


def test_views_of_weights_are_known_as_weights(graph: Graph) -> None:
    step = step_of(graph)
    transposed = [op for op in step.ops if op.kind == "t"]
    assert transposed
    assert any(result is not None and result.of_weight for op in transposed for result in op.results)


def test_a_step_survives_pickling(graph: Graph) -> None:
    step = step_of(graph)
    copy: Step = pickle.loads(pickle.dumps(step))
    assert copy.ops == step.ops
    assert dict(copy.tensors) == dict(step.tensors)


def test_a_step_written_by_hand_numbers_its_stages_along_the_data_flow() -> None:
    def tensor(name: str, producer: str | None = None) -> Tensor:
        return Tensor(name, (4,), FLOAT32, (1,), name, producer)

    ops = [
        Op("a", "relu", (tensor("a", "a"),), (Ref("x"),), placement=Placement("first", 0, 1)),
        Op("b", "relu", (tensor("b", "b"),), (Ref("a"),), placement=Placement("second", 3, 0)),
        Op("c", "relu", (tensor("c", "c"),), (Ref("b"),), placement=Placement("second", 3, 0), phase=Phase.BACKWARD),
    ]
    step = step_of_ops(ops, [(tensor("x"), Source.INPUT)], outputs=("b",))
    assert [(stage.index, stage.ipu) for stage in step.stages] == [(0, 1), (1, 0)]
    assert [op.stage for op in step.ops] == [0, 1, 1]
    assert [op.name for op in step.readers["a"]] == ["b"]
    assert step.maker("c") == step.ops[2]
    assert step.producer("x") is None
    moved = with_ops(step, lambda op: replace(op, placement=Placement("", 0, 0)))
    assert moved.ipus == (0,)
    assert len(moved.stages) == 1
