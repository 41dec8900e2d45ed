"""Half precision in whole models: no value outside the float16 grid is ever read, every op is rounded once.

The models are those of `test_replay.py`: an MLP, a CNN with batch normalisation, ResNet-18 on 32x32 images,
an LSTM
with dropout and a transformer layer; each is replayed op by op, forward and backward.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import pytest
import torch
from half_oracle import Replayed, Shares, Truth, interpret, is_half, on_grid, replay
from hypothesis import given, settings
from hypothesis import strategies as st
from test_replay import MODELS, Classifier
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.compute.replay import Arithmetic, build
from ipu_model.compute.rounding import round_to_half_
from ipu_model.graph import Graph

HALF = torch.float16


@dataclass(frozen=True)
class Run:
    graph: Graph
    replayed: Replayed
    truth: Truth


_runs: dict[str, Run] = {}


def run(name: str) -> Run:
    """Trace, replay and interpret a model once for all tests."""
    if name not in _runs:
        make, inputs = MODELS[name]
        torch.manual_seed(0)
        module = Classifier(make()).half()
        graph, arguments = traced_half(module, inputs())
        replayed = replay(graph, arguments)
        _runs[name] = Run(graph, replayed, interpret(graph, arguments, replayed.seen))
    return _runs[name]


def traced_half(module: nn.Module, x: Tensor) -> tuple[Graph, list[Tensor]]:
    """Trace `module` in half precision; also return the arguments of a micro-batch with the loss seed."""
    x = x.half() if x.is_floating_point() else x
    labels = torch.randint(0, 11, (len(x),))
    graph = traced(module, x, labels)
    state = module.state_dict()
    return graph, [*(state[v.name] for v in graph.variables), x, labels, torch.ones(()).half()]


@pytest.mark.parametrize("name", MODELS)
def test_no_op_reads_a_value_off_the_grid(name: str) -> None:
    done = run(name)  # raises where an operand is off the grid
    for node in done.graph.ops.nodes:
        assert node.op != "call_function" or "spec" in node.meta
    kept = [t for v, t in zip(done.graph.variables, done.replayed.arguments) if v.spec.dtype is HALF]
    assert all(on_grid(t) for t in (*done.replayed.outputs, *done.replayed.gradients, *kept))


@pytest.mark.parametrize("name", MODELS)
def test_every_op_is_rounded_once_from_its_exact_result(name: str) -> None:
    shares = run(name).truth.shares
    total = Shares(*(sum(getattr(s, field) for s in shares.values()) for field in ("elements", "equal", "close")))
    assert total.elements > 1000
    assert total.share_close >= 0.999
    assert total.share_equal >= 0.999
    for op, share in shares.items():
        assert share.elements - share.close <= max(share.elements // 100, 1), op


def test_resnet_rounds_each_inexact_result_once_and_nothing_else() -> None:
    """Convolutions, sums of gradients and normalisation are rounded; rectifiers, pools and views are not."""
    graph = run("resnet18").graph
    rewritten = build(graph, Arithmetic()).module.graph
    values = [n.args[0] for n in rewritten.nodes if n.target is round_to_half_]
    sources = {str(v.args[0].target if v.target is operator.getitem else v.target) for v in values}
    assert not sources & {
        "aten.relu_.default",
        "aten.threshold_backward.default",
        "aten.max_pool2d_with_indices.default",
    }
    computed = [v for v in values if v.op == "call_function"]
    assert len(computed) == len(set(computed))
    statistics = [v for v in values if v.op == "placeholder"]
    assert len(statistics) == 2 * 20, "mean and variance of 20 batch norms, held in half-precision buffers"
    convolutions = [v for v in computed if v.target is torch.ops.aten.convolution.default]
    assert len(convolutions) == 20


class Sampled(nn.Module):
    """A chain of ops drawn from a list, over one weight."""

    CHAIN = (
        lambda x: x + 0.1, lambda x: x * 0.1, lambda x: x / 3, lambda x: x.exp().clamp(max=9),
        lambda x: x.sigmoid(),
        lambda x: x.masked_fill(x > 0.3, 0.7), lambda x: torch.where(x < 0.1, x, 0.2), lambda x: x.softmax(1),
        lambda x: x - x.mean(), lambda x: x.clone().add_(1 / 3), lambda x: torch.cat([x[:, 2:], x[:, :2]], 1),
        lambda x: x.float().mul(0.1).half(), lambda x: x * torch.arange(4099, 4105),
        lambda x: x.clamp(-0.3, 0.3),
        lambda x: x * torch.tensor(1 / 3), lambda x: x @ x.t() @ x,
        lambda x: torch.nn.functional.pad(x, (1, -1), value=0.3),
    )  # fmt: skip

    def __init__(self, choice: list[int]) -> None:
        super().__init__()
        self.choice = choice
        self.weight = nn.Parameter(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        y = self.weight * x
        for number in self.choice:
            y = type(self).CHAIN[number](y)
        return torch.nn.functional.cross_entropy(y, labels)


@settings(max_examples=25)
@given(st.lists(st.integers(0, len(Sampled.CHAIN) - 1), min_size=1, max_size=6))
def test_no_chain_of_ops_leaves_the_grid(choice: list[int]) -> None:
    module = Sampled(choice).half()
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).half()
    labels = torch.tensor([0, 1, 2, 3, 4])
    graph = traced(module, x, labels)
    replayed = replay(graph, [module.weight.detach(), x, labels, torch.ones(()).half()])
    assert all(on_grid(t) for t in (*replayed.outputs, *replayed.gradients))
    assert any(is_half(node) for node in graph.ops.nodes)
