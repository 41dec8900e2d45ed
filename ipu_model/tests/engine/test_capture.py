"""What a captured graph and its step say of ops, variables and loss, which values are known meanwhile, and its replay.

Replaying a captured graph gives eager PyTorch's numbers, bit for bit, for the kinds of model the course meets.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import hand_written
import pytest
import torch
import torch.fx
import torch.nn.functional as F
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from net_support import KeepGradients, Net, session_of, traced
from torch import Tensor, nn

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


# --- replay


def classifier(body: nn.Module) -> Net:
    def forward(net: Net, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = net.body(x)
        return out, F.cross_entropy(out, y)

    return Net(forward, body=body)


def sequence_model() -> Net:
    return Net(
        lambda net, x: net.head(net.lstm(net.embed(x))[0][:, -1]),
        embed=nn.Embedding(11, 8),
        lstm=nn.LSTM(8, 12, num_layers=2, batch_first=True, dropout=0.3),
        head=nn.Linear(12, 11),
    )


def attention() -> Net:
    return Net(
        lambda net, x: net.head(net.layer(net.embed(x)).mean(1)),
        embed=nn.Embedding(11, 16),
        layer=nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True),
        head=nn.Linear(16, 11),
    )


images, tokens = partial(torch.randn, 4, 3, 32, 32), partial(torch.randint, 0, 11, (4, 6))
MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 20), nn.GELU(), nn.Linear(20, 11)), images),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=11), images),
    "lstm with dropout": (sequence_model, tokens),
    "transformer": (attention, tokens),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_loss_gradients_and_statistics_are_those_of_eager(name: str) -> None:
    make, inputs = MODELS[name]
    torch.manual_seed(1)
    model = classifier(make())
    eager = copy.deepcopy(model)
    session = session_of(model, inputs(), torch.randint(0, 11, (4,)))
    x, y = inputs(), torch.randint(0, 11, (4,))
    keeper = KeepGradients(session)
    session.randomness.restore([7])
    outputs, loss = session.run([x, y])

    torch.manual_seed(7)
    expected, expected_loss = eager(x, y)
    expected_loss.backward()
    # An LSTM's weight gradient is one product over all steps here: PyTorch adds the steps up in another order.
    same = torch.allclose if "lstm" in name else torch.equal
    assert same(outputs, expected)
    assert same(loss, expected_loss)
    for key, parameter in eager.named_parameters():
        assert same(keeper.gradients[key], parameter.grad), key
    for key, buffer in eager.named_buffers():
        if buffer.is_floating_point():
            assert torch.equal(session.download()[key], buffer), key


def test_an_autocast_of_the_program_does_not_reach_into_the_replay() -> None:
    session, x = session_of(nn.Linear(64, 8), torch.zeros(4, 64), training=False), torch.randn(4, 64)
    expected = session.run([x])[0]
    with torch.autocast("cpu"):
        assert torch.equal(session.run([x])[0], expected)


def matched(net: Net, x: Tensor) -> Tensor:
    """A loss against values laid out channel after channel, and a view of what the loss is taken of.

    mse_loss_backward is dense when it is computed; on fake tensors it has the layout of its second operand.
    """
    rows = net.layer(x).permute(0, 2, 3, 1).reshape(-1, 6)  # a copy, whose gradient is a view
    back = rows.view(len(x), 4, 4, 6).permute(0, 3, 1, 2)
    return F.mse_loss(torch.zeros(back.shape), back)


def attended(net: Net, x: Tensor) -> Tensor:
    """Group norm of what attention over pixels leaves: channels that lie last, in channels-first shape.

    The stride of a batch of one is 8 when it is computed and 128 on fake tensors, which PyTorch takes for dense.
    """
    pixels = net.layer(x.flatten(2).transpose(1, 2))
    return F.mse_loss(net.norm(pixels.transpose(1, 2).reshape(x.shape) + x), x)


@pytest.mark.parametrize(
    ("function", "layer", "shape"),
    [
        (matched, nn.Conv2d(2, 6, 3), (3, 2, 6, 6)),
        (attended, nn.Linear(8, 8), (1, 8, 4, 4)),
        (attended, nn.Linear(8, 8), (2, 8, 4, 4)),
    ],
)
def test_layouts_that_fake_tensors_do_not_have(function: Any, layer: nn.Module, shape: tuple[int, ...]) -> None:
    model = Net(function, layer=copy.deepcopy(layer), norm=nn.GroupNorm(4, 8))
    eager, x = copy.deepcopy(model), torch.randn(shape, generator=torch.Generator().manual_seed(0))
    session = session_of(model, x)
    keeper = KeepGradients(session)
    session.run([x])
    eager(x).backward()
    for name, gradient in keeper.gradients.items():
        torch.testing.assert_close(gradient, eager.get_parameter(name).grad, rtol=1e-6, atol=1e-7)
    assert "layer.weight" in keeper.gradients


# CTC loss is an op of the graph, with lengths that are constants or inputs.

LOGITS = torch.randn(9, 3, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(1, 6, (3, 4), generator=torch.Generator().manual_seed(1))
INPUT_LENGTHS, TARGET_LENGTHS = torch.tensor([9, 7, 8]), torch.tensor([4, 3, 4])


def recogniser(constant: bool = False, **settings: Any) -> Net:
    def forward(net: Net, targets: Tensor, *lengths: Any) -> Tensor:
        lengths = ((9, 7, 8), (4, 3, 4)) if constant else lengths
        return F.ctc_loss(net.logits.log_softmax(2), targets, *lengths, **settings)

    return Net(forward, logits=nn.Parameter(LOGITS.clone()))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    "settings",
    [{}, {"reduction": "sum"}, {"reduction": "none"}, {"blank": 5}, {"zero_infinity": True}],
    ids=str,
)
def test_ctc_loss_and_its_gradient_are_pytorchs(constant: bool, settings: dict[str, object]) -> None:
    """Lengths may differ from call to call."""
    targets = TARGETS % 5 if "blank" in settings else TARGETS
    inputs = [t.to(torch.int64 if constant else torch.int32) for t in (targets, INPUT_LENGTHS, TARGET_LENGTHS)]
    model = recogniser(constant, **settings)
    session = session_of(model, *inputs)
    keeper = KeepGradients(session)
    for lengths in (inputs[2], torch.tensor([1, 2, 1], dtype=inputs[2].dtype)):
        (loss,) = session.run([*inputs[:2], lengths])
        model.zero_grad()
        expected = model(*inputs[:2], lengths)
        expected.sum().backward()
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(keeper.gradients["logits"], model.logits.grad)
