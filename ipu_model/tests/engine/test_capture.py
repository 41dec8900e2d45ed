"""What a captured graph says of its ops, variables and loss, what it refuses, and what of PyTorch it relies on."""

from __future__ import annotations

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from tracing_support import Net, ops_of, traced

from ipu_model.capture import torch_private as private
from ipu_model.capture import tracing
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import NodeInfo, TensorSpec, info_of, set_info
from ipu_model.capture.recorder import known_values
from ipu_model.errors import Error
from ipu_model.step import Phase

aten = torch.ops.aten


def three_blocks_model() -> Net:
    """A convolution on IPU 0, a linear layer on IPU 1, another and the loss on IPU 2."""

    def forward(net: Net, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        trace = tracing.current()
        for ipu, layer in enumerate((net.conv, net.hidden, net.head)):
            if trace is not None:
                trace.begin_block(f"B{ipu}", ipu)
            x = layer(x)
            x = x.flatten(1) if ipu == 0 else x.relu() if ipu == 1 else x
        return x, F.cross_entropy(x, y)

    return Net(forward, conv=nn.Conv2d(1, 4, 3), hidden=nn.Linear(4 * 36, 16), head=nn.Linear(16, 10))


@pytest.fixture(scope="module")
def three_blocks():
    return traced(three_blocks_model(), torch.randn(2, 1, 8, 8), torch.zeros(2, dtype=torch.long))


def detached(net: Net, x: Tensor) -> tuple[Tensor, ...]:
    """Return a result, the same without its history, a constant, and the loss in both forms."""
    out = net.linear(x)
    loss = F.mse_loss(out, x)
    return out, out.detach(), torch.ones(3), loss.detach(), loss


@pytest.mark.parametrize("training", [True, False])
def test_results_are_named_after_nodes_of_the_graph(training: bool) -> None:
    """Also where tracing recorded a node, such as `detach`, that the finished graph has no more."""
    graph = traced(Net(detached, linear=nn.Linear(4, 4)), torch.zeros(2, 4), training=training)
    names = {node.name for node in graph.ops.nodes}
    results = [output.node for output in graph.outputs]
    assert {*results, *graph.gradients.values()} <= names
    assert results[0] == results[1]
    assert results[3] == results[4]
    assert graph.loss in (results[4], None)


def test_backward_ops_are_placed_where_their_forward_ops_were(three_blocks) -> None:
    place = {(node.target, info_of(node).phase): info_of(node).placement.ipu for node in ops_of(three_blocks)}
    assert place[aten.convolution.default, Phase.FORWARD] == 0
    assert place[aten.convolution_backward.default, Phase.BACKWARD] == 0
    assert place[aten.threshold_backward.default, Phase.BACKWARD] == 1
    assert place[aten.nll_loss_backward.default, Phase.BACKWARD] == 2
    matmuls = [
        info_of(n).placement.ipu
        for n in ops_of(three_blocks)
        if n.target is aten.mm.default and info_of(n).phase is Phase.BACKWARD
    ]
    assert matmuls == [2, 2, 1, 1], "two products per linear layer, last layer first"


def test_scopes_are_the_dotted_names_of_submodules(three_blocks) -> None:
    scopes = {node.target: info_of(node).scope for node in ops_of(three_blocks) if info_of(node).phase is Phase.FORWARD}
    assert scopes[aten.convolution.default] == "conv"
    assert scopes[aten.nll_loss_forward.default] == ""


def test_the_graph_lists_ipus_and_block_entries(three_blocks) -> None:
    assert step_of(three_blocks).ipus == (0, 1, 2)
    assert [entry.block for entry in three_blocks.block_entries] == ["B0", "B1", "B2"]


def test_gradients_exist_for_exactly_the_trainable_parameters() -> None:
    model = three_blocks_model()
    model.hidden.bias.requires_grad_(False)
    graph = traced(model, torch.randn(2, 1, 8, 8), torch.zeros(2, dtype=torch.long))
    assert set(graph.gradients) == {n for n, p in model.named_parameters() if p.requires_grad}


def test_tied_parameters_are_one_variable_under_both_names() -> None:
    embed, out = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
    out.weight = embed.weight
    tied = Net(lambda net, i: F.cross_entropy(net.out(net.embed(i)), i), embed=embed, out=out)
    graph = traced(tied, torch.tensor([1, 2, 3]))
    (variable,) = graph.variables
    assert variable.names == ("embed.weight", "out.weight")
    assert list(graph.gradients) == ["embed.weight"]


def test_integer_buffers_are_constants_and_their_counters_vanish() -> None:
    model = Net(lambda net, x: net.norm(x).pow(2).mean(), norm=nn.BatchNorm1d(3))
    graph = traced(model, torch.randn(4, 3), training=False)
    assert "norm.num_batches_tracked" not in {v.name for v in graph.variables}
    assert graph.constants == {}
    assert {v.name for v in graph.variables if v.tensor in graph.mutated} == {
        "norm.running_mean",
        "norm.running_var",
    }
    assert graph.assigned == frozenset(), "batch normalisation's own updates are not the program's"
    assert model.norm.num_batches_tracked.item() == 0


def test_the_same_number_of_ops_as_make_fx(three_blocks) -> None:
    # make_fx is an independent tracer; after the same clean-up both must list the same ops.
    model = three_blocks_model()
    names = [n for n, _ in model.named_parameters()]

    def step(weights, x, y, seed):
        outputs, loss = torch.func.functional_call(model, dict(zip(names, weights)), (x, y))
        return outputs, loss, torch.autograd.grad(loss, weights, seed)

    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    reference = make_fx(step)(weights, torch.randn(2, 1, 8, 8), torch.zeros(2, dtype=torch.long), torch.ones(()))
    reference.graph.eliminate_dead_code()
    ignored = {aten.detach.default, aten.alias.default}  # with torch 2.14, make_fx keeps four aliases
    theirs = [n.target for n in reference.graph.nodes if n.op == "call_function" and n.target not in ignored]
    ours = [n.target for n in ops_of(three_blocks)]
    assert sorted(map(str, ours)) == sorted(map(str, theirs))


def test_a_failed_trace_leaves_no_trace_active_and_the_module_usable() -> None:
    layer = nn.Linear(3, 3)
    model = Net(lambda net, x: F.mse_loss(net.layer(x) if x.sum() > 0 else x, x), layer=layer)
    with pytest.raises(Error):
        traced(model, torch.randn(2, 3))
    assert not tracing.is_tracing()
    assert model(torch.randn(2, 3)).isfinite()


def graph_of(start: Tensor) -> tuple[torch.fx.Graph, torch.fx.Node, torch.fx.Node, dict[str, Tensor]]:
    """A graph with one input and one constant."""
    graph = torch.fx.Graph()
    data, constant = graph.placeholder("data"), graph.get_attr("constant")
    for node in (data, constant):
        set_info(node, NodeInfo(TensorSpec.of(start)))
    return graph, data, constant, {"constant": start}


def values(wanted: torch.fx.Node, constants: dict[str, Tensor], changeable: frozenset[str] = frozenset()) -> object:
    found = known_values([wanted], constants, changeable)
    return None if found is None else found[0].tolist()


class TestKnownValues:
    """Values known while a graph is recorded: of constants alone, as they are at that point."""

    def test_what_comes_of_constants_is_known_and_what_comes_of_data_is_not(self) -> None:
        graph, data, constant, constants = graph_of(torch.tensor([1.0, 2.0]))
        doubled = graph.call_function(aten.mul.Tensor, (constant, 2))
        mixed = graph.call_function(aten.add.Tensor, (doubled, data))
        assert values(doubled, constants) == [2.0, 4.0]
        assert values(mixed, constants) is None

    def test_random_numbers_are_not_known(self) -> None:
        graph, _, constant, constants = graph_of(torch.ones(2))
        drawn = graph.call_function(aten.rand_like.default, (constant,))
        assert values(drawn, constants) is None

    def test_what_only_has_the_shape_of_data_is_known(self) -> None:
        graph, data, _, constants = graph_of(torch.zeros(3))
        assert values(graph.call_function(aten.ones_like.default, (data,)), constants) == [1.0, 1.0, 1.0]

    @given(st.lists(st.integers(-5, 5), min_size=1, max_size=4), st.integers(-5, 5))
    def test_values_are_those_after_everything_written_so_far(self, start: list[int], added: int) -> None:
        """Also through a view; what was computed before keeps its value, and the constant itself stays."""
        graph, _, constant, constants = graph_of(torch.tensor(start))
        before = graph.call_function(aten.mul.Tensor, (constant, 3))
        first = graph.call_function(aten.select.int, (constant, 0, 0))
        graph.call_function(aten.add_.Tensor, (first, added))
        assert values(constant, constants) == [start[0] + added, *start[1:]]
        assert values(before, constants) == [3 * number for number in start]
        assert constants["constant"].tolist() == start

    def test_data_written_to_a_constant_make_it_unknown(self) -> None:
        graph, data, constant, constants = graph_of(torch.zeros(2))
        graph.call_function(aten.copy_.default, (constant, data))
        assert values(constant, constants) is None

    def test_a_tensor_that_outlives_the_call_is_known_until_forward_writes_to_it(self) -> None:
        graph, _, constant, constants = graph_of(torch.zeros(2))
        kept = frozenset({"constant"})
        assert values(constant, constants, kept) == [0.0, 0.0]
        graph.call_function(aten.add_.Tensor, (constant, 1))
        assert values(constant, constants, kept) is None
        assert values(constant, constants) == [1.0, 1.0]


class TestPrivateNamesOfPyTorch:
    """Every private PyTorch name that capture relies on: if one of these fails, look at capture again."""

    def test_each_autograd_node_gets_the_next_sequence_number(self) -> None:
        x = torch.ones(3, requires_grad=True)
        first = x * 2
        assert private.last_sequence_number() == private.sequence_number(first.grad_fn)
        second = first + 1
        assert private.sequence_number(second.grad_fn) == private.sequence_number(first.grad_fn) + 1

    def test_backward_is_told_apart_from_forward_and_names_its_node(self) -> None:
        seen = []

        class Spy(private.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                node = private.autograd_node_in_progress()
                seen.append((private.in_backward(), node.name() if node is not None else None))
                return func(*args, **(kwargs or {}))

        x = torch.ones(3, requires_grad=True)
        with Spy():
            y = x.sin()
            torch.autograd.grad(y, x, torch.ones(3))
        assert (False, None) in seen
        assert (True, "SinBackward0") in seen
        assert not private.in_backward()

    def test_fake_tensors_refuse_data_and_carry_shapes(self) -> None:
        with private.FakeTensorMode(allow_non_fake_inputs=True):
            fake = torch.empty(4, 5) @ torch.empty(5, 6)
            assert isinstance(fake, private.FakeTensor)
            assert fake.shape == (4, 6)
            with pytest.raises(private.DataDependentOutputException):
                fake.sum().item()
            with pytest.raises(private.DynamicOutputShapeException):
                fake.nonzero()

    def test_mkldnn_is_off_inside_and_as_before_afterwards(self) -> None:
        before = torch._C._get_mkldnn_enabled()
        with private.plain_ops_traced():
            assert not torch._C._get_mkldnn_enabled()
        assert torch._C._get_mkldnn_enabled() == before

    def test_transformers_do_not_look_at_their_mask_inside(self) -> None:
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        encoder, x = torch.nn.TransformerEncoder(layer, 1), torch.randn(2, 3, 8)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(3)
        with private.plain_ops_traced():
            inside = encoder(x, mask)
            with private.FakeTensorMode(allow_non_fake_inputs=True):
                assert encoder(torch.empty(2, 3, 8), torch.empty(3, 3)).shape == (2, 3, 8)
        assert torch.allclose(inside, encoder(x, mask), atol=1e-6)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpoints_run_their_function_once_inside_and_twice_afterwards(self, reentrant: bool) -> None:
        calls = []

        def function(x: torch.Tensor, scale: float) -> torch.Tensor:
            calls.append(scale)
            return x.sin() * scale

        def differentiate() -> int:
            calls.clear()
            x = torch.ones(3, requires_grad=True)
            checkpoint(function, x, 2.0, use_reentrant=reentrant).sum().backward()
            return len(calls)

        with private.plain_ops_traced():
            assert differentiate() == 1
        assert differentiate() == 2

    def test_gradient_hooks_are_those_registered_in_order(self) -> None:
        x = torch.ones(2, requires_grad=True)
        assert private.gradient_hooks(x) == []
        hooks = [lambda gradient: gradient * 2, lambda gradient: gradient + 1]
        handles = [x.register_hook(hook) for hook in hooks]
        assert private.gradient_hooks(x) == hooks
        handles[0].remove()
        assert private.gradient_hooks(x) == hooks[1:]

    def test_an_adaptive_softmax_returns_its_pair(self) -> None:
        softmax = torch.nn.AdaptiveLogSoftmaxWithLoss(4, 10, cutoffs=[3])
        result = softmax(torch.zeros(2, 4), torch.tensor([0, 9]))
        assert type(result) is private.AdaptiveSoftmaxOutput
        assert result._fields == ("output", "loss")
