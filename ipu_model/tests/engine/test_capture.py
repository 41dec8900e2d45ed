"""What a captured graph and its step say of ops, variables and loss, and which values are known meanwhile."""

from __future__ import annotations

import importlib
import pickle
from dataclasses import replace
from pathlib import Path

import hand_written
import pytest
import torch
import torch.fx
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from tracing_support import Net, traced

import poptorch
from ipu_model.capture import torch_private as private
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph, NodeInfo, TensorSpec, info_of, set_info
from ipu_model.capture.recorder import known_values
from ipu_model.step import Phase, Placement, Source, Step, step_of_ops, with_ops

aten = torch.ops.aten
IMAGES, LABELS = torch.randn(2, 1, 8, 8), torch.zeros(2, dtype=torch.long)


def three_blocks_model() -> Net:
    """A convolution on IPU 0, a linear layer on IPU 1, another and the loss on IPU 2."""

    def forward(net: Net, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with poptorch.Block("B0", ipu_id=0):
            x = F.max_pool2d(torch.relu_(poptorch.set_available_memory(net.conv(x), 0.25)), 2).flatten(1)
        with poptorch.Block("B1", ipu_id=1):
            x = net.hidden(x).relu()
        with poptorch.Block("B2", ipu_id=2):
            x = net.head(x)
            return x, F.cross_entropy(x, y)

    return Net(forward, conv=nn.Conv2d(1, 4, 3), hidden=nn.Linear(4 * 9, 16), head=nn.Linear(16, 10))


@pytest.fixture(scope="module")
def three_blocks() -> Graph:
    return traced(three_blocks_model(), IMAGES, LABELS)


@pytest.fixture(scope="module")
def step(three_blocks: Graph) -> Step:
    return step_of(three_blocks)


@pytest.mark.parametrize("training", [True, False])
def test_results_are_named_after_nodes_of_the_graph(training: bool) -> None:
    """Also where tracing recorded a node, such as `detach`, that the finished graph has no more."""

    def detached(net: Net, x: Tensor) -> tuple[Tensor, ...]:
        out = net.linear(x)
        loss = F.mse_loss(out, x)
        return out, out.detach(), torch.ones(3), loss.detach(), loss

    graph = traced(Net(detached, linear=nn.Linear(4, 4)), torch.zeros(2, 4), training=training)
    results = [output.node for output in graph.outputs]
    assert {*results, *graph.gradients.values()} <= {node.name for node in graph.ops.nodes}
    assert results[0] == results[1]
    assert results[3] == results[4]
    assert graph.loss in (results[4], None)


def test_ops_are_placed_and_backward_ops_where_their_forward_ops_were(three_blocks: Graph, step: Step) -> None:
    place = {(op.kind, op.phase): op.ipu for op in step.ops}
    assert place["convolution", Phase.FORWARD] == place["convolution_backward", Phase.BACKWARD] == 0
    assert place["threshold_backward", Phase.BACKWARD] == 0
    assert place["nll_loss_backward", Phase.BACKWARD] == 2
    matmuls = [op.ipu for op in step.ops if op.kind == "mm" and op.phase is Phase.BACKWARD]
    assert matmuls == [2, 2, 1, 1], "two products per linear layer, last layer first"
    nodes = {node.name: node for node in three_blocks.ops.nodes}
    assert all(op.stage == op.ipu == info_of(nodes[op.name]).placement.ipu for op in step.ops)
    assert step.ipus == tuple(stage.ipu for stage in step.stages) == (0, 1, 2)
    assert [entry.block for entry in three_blocks.block_entries] == ["B0", "B1", "B2"]
    scopes = {op.kind: info_of(nodes[op.name]).scope for op in step.ops if op.phase is Phase.FORWARD}
    assert (scopes["convolution"], scopes["nll_loss_forward"]) == ("conv", "")


def test_operands_and_storages_are_those_of_the_nodes(three_blocks: Graph, step: Step) -> None:
    nodes = {node.name: node for node in three_blocks.ops.nodes}
    for op in step.ops:
        assert list(op.reads) == [source.name for source in nodes[op.name].all_input_nodes]
    for name, tensor in step.tensors.items():
        assert tensor.storage == three_blocks.roots[nodes[name]].name
        assert tensor.storage in step.storages


def test_the_line_of_a_reloaded_module_is_that_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited_model.py"
    for expression in ("return x.sin()", "return torch.cos(x)"):
        file.write_text(f"import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        {expression}\n")
        module = importlib.reload(importlib.import_module("edited_model"))
        (op,) = step_of(traced(module.M(), torch.ones(2), training=False)).ops
        assert op.line == f"line 4 of forward in edited_model.py: {expression}"


def test_tensors_know_their_op_hints_and_weights(step: Step) -> None:
    pool = next(op for op in step.ops if op.kind == "max_pool2d_with_indices")
    assert [result.index for result in pool.results if result is not None] == [0, 1]
    assert {tensor.producer for name, tensor in step.tensors.items() if name.startswith("getitem")} >= {pool.name}
    hints = {op.kind: op.hints.available_memory_proportion for op in step.ops if op.kind.startswith("convolution")}
    assert hints == {"convolution": 0.25, "convolution_backward": 0.25}, "a gradient has those of its forward op"
    transposed = [op for op in step.ops if op.kind == "t"]
    assert any(result is not None and result.of_weight for op in transposed for result in op.results)
    copy: Step = pickle.loads(pickle.dumps(step))
    assert (copy.ops, dict(copy.tensors)) == (step.ops, dict(step.tensors))


def test_a_step_written_by_hand_numbers_its_stages_along_the_data_flow() -> None:
    first, second = Placement("first", 0, 1), Placement("second", 3, 0)
    ops = [
        hand_written.op("relu", (4,), "x", name="a", placement=first),
        hand_written.op("relu", (4,), "a", name="b", placement=second),
        hand_written.op("relu", (4,), "b", name="c", placement=second, phase=Phase.BACKWARD),
    ]
    step = step_of_ops(ops, [(hand_written.tensor("x", 4), Source.INPUT)], outputs=("b",))
    assert [(stage.index, stage.ipu) for stage in step.stages] == [(0, 1), (1, 0)]
    assert [op.stage for op in step.ops] == [0, 1, 1]
    assert [op.name for op in step.readers["a"]] == ["b"]
    assert step.maker("c") == step.ops[2]
    assert step.producer("x") is None
    moved = with_ops(step, lambda op: replace(op, placement=Placement("", 0, 0)))
    assert moved.ipus == (0,)
    assert len(moved.stages) == 1


def test_trainable_parameters_get_gradients_tied_ones_one_under_both_names() -> None:
    embed, out = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
    out.weight = embed.weight
    tied = Net(lambda net, i: F.cross_entropy(net.out(net.embed(i)), i), embed=embed, out=out)
    graph = traced(tied, torch.tensor([1, 2, 3]))
    assert [variable.names for variable in graph.variables] == [("embed.weight", "out.weight")]
    assert list(graph.gradients) == ["embed.weight"]
    model = three_blocks_model()
    model.hidden.bias.requires_grad_(False)
    assert set(traced(model, IMAGES, LABELS).gradients) == {n for n, p in model.named_parameters() if p.requires_grad}


def test_integer_buffers_are_constants_and_their_counters_vanish() -> None:
    model = Net(lambda net, x: net.norm(x).pow(2).mean(), norm=nn.BatchNorm1d(3))
    model.function = lambda net, x: poptorch.identity_loss(net.norm(x).pow(2).mean(), "none")
    graph = traced(model, torch.randn(4, 3))
    assert "norm.num_batches_tracked" not in {v.name for v in graph.variables}
    assert graph.constants == {}
    mutated = {v.name for v in graph.variables if v.tensor in graph.mutated}
    assert mutated == {"norm.running_mean", "norm.running_var"}
    assert graph.assigned == frozenset(), "batch normalisation's own updates are not the program's"
    assert model.norm.num_batches_tracked.item() == 0


class TestKnownValues:
    """Values known while a graph is recorded: of constants alone, as they are at that point."""

    @staticmethod
    def graph_of(*start: float) -> tuple[torch.fx.Graph, torch.fx.Node, torch.fx.Node, dict[str, Tensor]]:
        """Return a graph with one input and one constant."""
        graph, values = torch.fx.Graph(), torch.tensor(start)
        data, constant = graph.placeholder("data"), graph.get_attr("constant")
        for node in (data, constant):
            set_info(node, NodeInfo(TensorSpec.of(values)))
        return graph, data, constant, {"constant": values}

    @staticmethod
    def values(wanted: torch.fx.Node, constants: dict[str, Tensor], changeable: str = "") -> object:
        found = known_values([wanted], constants, frozenset(changeable.split()))
        return None if found is None else found[0].tolist()

    def test_what_comes_of_constants_or_the_shape_of_data_is_known(self) -> None:
        graph, data, constant, constants = self.graph_of(1.0, 2.0)
        doubled = graph.call_function(aten.mul.Tensor, (constant, 2))
        mixed = graph.call_function(aten.add.Tensor, (doubled, data))
        drawn = graph.call_function(aten.rand_like.default, (constant,))
        ones = graph.call_function(aten.ones_like.default, (data,))
        found = [self.values(node, constants) for node in (doubled, mixed, drawn, ones)]
        assert found == [[2.0, 4.0], None, None, [1.0, 1.0]]

    @given(st.lists(st.integers(-5, 5), min_size=1, max_size=4), st.integers(-5, 5))
    def test_values_are_those_after_everything_written_so_far(self, start: list[int], added: int) -> None:
        """Also through a view; what was computed before keeps its value, and the constant itself stays."""
        graph, _, constant, constants = self.graph_of(*start)
        before = graph.call_function(aten.mul.Tensor, (constant, 3))
        first = graph.call_function(aten.select.int, (constant, 0, 0))
        graph.call_function(aten.add_.Tensor, (first, added))
        assert self.values(constant, constants) == [start[0] + added, *start[1:]]
        assert self.values(before, constants) == [3 * number for number in start]
        assert constants["constant"].tolist() == start

    def test_data_make_a_constant_unknown_and_so_does_a_change_of_what_outlives_the_call(self) -> None:
        graph, data, constant, constants = self.graph_of(0.0, 0.0)
        assert self.values(constant, constants, "constant") == [0.0, 0.0]
        graph.call_function(aten.add_.Tensor, (constant, 1))
        assert self.values(constant, constants, "constant") is None
        assert self.values(constant, constants) == [1.0, 1.0]
        graph.call_function(aten.copy_.default, (constant, data))
        assert self.values(constant, constants) is None


def test_while_plain_ops_are_traced_mkldnn_is_off() -> None:
    before = torch._C._get_mkldnn_enabled()
    with private.plain_ops_traced():
        assert not torch._C._get_mkldnn_enabled()
    assert torch._C._get_mkldnn_enabled() == before
