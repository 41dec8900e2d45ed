"""Half precision: every op computes in float32 and rounds its result to float16 once, or not at all if it need not.

Expected values come from `half_oracle.py` (float64, rounded once by numpy) and, independently of the captured graph,
from PyTorch itself in float64. The bound, one float16 number for 99 % of the elements, is the project's own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from half_oracle import Replayed, Shares, Truth, interpret, is_half, on_grid, replay, rounded, ulps
from half_support import Case, Op
from half_table import losses, table
from hypothesis import given, settings
from hypothesis import strategies as st
from test_replay import MODELS, classifier
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.capture.graph import Graph
from ipu_model.compute.half_ops import COMPARING, CONVERTING, EXACT, SELECTING, UNINITIALISED
from ipu_model.compute.replay import Arithmetic, build
from ipu_model.compute.rounding import clip_to_half_, round_to_half_

# Op by op, forward and backward.

CASES = {case.name: case for case in (*table(), *losses())}
HALF = torch.float16

# PyTorch announces a change of `kl_div`.
pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")


@dataclass(frozen=True)
class Run:
    """A case or model, traced in half precision and replayed, with what the oracle says about it."""

    graph: Graph
    arguments: list[Tensor]
    replayed: Replayed
    seed: Tensor

    @cached_property
    def from_start(self) -> Truth:
        return interpret(self.graph, self.arguments)

    @cached_property
    def step_by_step(self) -> Truth:
        return interpret(self.graph, self.arguments, self.replayed.seen)


def replayed(module: nn.Module, inputs: list[Tensor]) -> Run:
    graph = traced(module, *inputs)
    assert graph.loss_spec is not None
    seed = torch.randn(graph.loss_spec.shape, generator=torch.Generator().manual_seed(1)).half()
    state = module.state_dict()
    arguments = [*(state[v.name] for v in graph.variables), *inputs, seed]
    return Run(graph, arguments, replay(graph, arguments), seed)


@cache
def run(name: str) -> Run:
    """Trace and replay a case once for all tests."""
    case = CASES[name]
    return replayed(Op(case, HALF), list(case.inputs.values()))


@cache
def run_model(name: str) -> Run:
    """Trace and replay a model once for all tests."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    x = inputs()
    labels = torch.randint(0, 11, (len(x),))
    return replayed(classifier(make()).half(), [x.half() if x.is_floating_point() else x, labels])


def results(of: Replayed | Truth, graph: Graph) -> dict[str, Tensor]:
    """Return outputs, gradients and buffers that are float16 on the device, by name."""
    named = {f"output {i}": t for i, t in enumerate(of.outputs) if graph.outputs[i].spec.dtype is HALF}
    named.update({f"gradient of {n}": t for n, t in zip(graph.gradients, of.gradients)})
    buffers = [(v, t) for v, t in zip(graph.variables, of.arguments) if v.is_buffer]
    named.update({f"buffer {v.name}": t for v, t in buffers})
    return named


def assert_close(actual: Tensor, expected: Tensor, what: str) -> None:
    """At least 99 % of the elements are within one float16 number; in small tensors all are within two."""
    distance = ulps(actual, expected)
    far = int((distance > 1).sum())
    if distance.numel() >= 100:
        assert far <= distance.numel() // 100, f"{what}: {far} of {distance.numel()} further than 1 ulp"
    else:
        assert int(distance.max()) <= 2, f"{what}: {int(distance.max())} ulps"


def plain_pytorch(case: Case, seed: Tensor) -> dict[str, Tensor]:
    """Compute `case` in float64 with PyTorch alone; round the results to the float16 grid."""
    module = Op(case, torch.float64)
    inputs = [t.double() if t.is_floating_point() else t for t in case.inputs.values()]
    output = module(*inputs)
    gradients = torch.autograd.grad(output, list(module.parameters()), seed.double())
    found = {"output 0": output}
    found.update({f"gradient of {name}": g for (name, _), g in zip(module.named_parameters(), gradients)})
    found.update({f"buffer {name}": buffer for name, buffer in module.named_buffers()})
    return {name: rounded(tensor) for name, tensor in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_every_op_of_the_graph_is_rounded_once_from_its_exact_result(name: str) -> None:
    shares = run(name).step_by_step.shares
    assert shares, "no float16 result was compared"
    for op, share in shares.items():
        assert share.elements - share.close <= (share.elements // 100 or 1), op
        if share.elements >= 100:
            assert share.share_equal >= 0.98, f"{op}: not rounded to nearest"


@pytest.mark.parametrize("case_name", CASES)
def test_results_are_float16_values_equal_to_the_oracles_and_to_pytorchs_in_float64(case_name: str) -> None:
    """Element by element where one rounding lies on the way, else relative to the largest element."""
    done = run(case_name)
    actual, expected = results(done.replayed, done.graph), results(done.from_start, done.graph)
    truth = plain_pytorch(CASES[case_name], done.seed)
    assert actual.keys() == expected.keys() == truth.keys()
    for name, tensor in actual.items():
        assert on_grid(tensor), name
        if roundings(done, name) <= 1:
            assert_close(tensor, expected[name], name)
            assert_close(tensor, truth[name], f"{name} against plain PyTorch")
        else:
            scale = float(truth[name].abs().max())
            for other, bound in ((expected[name], 2.0**-9), (truth[name], 2.0**-6)):
                assert float((tensor.double() - other).abs().max()) <= bound * scale, name


def roundings(done: Run, name: str) -> int:
    """Count the roundings on the way to a result; those of running statistics are not followed."""
    kind, _, rest = name.partition(" ")
    if kind == "buffer":
        return 1
    if kind == "gradient":
        return done.from_start.roundings.get(done.graph.gradients[rest.removeprefix("of ")], 0)
    node = done.graph.outputs[int(rest)].node
    return done.from_start.roundings.get(str(node), 0)


def test_most_results_are_exact_results_rounded_once() -> None:
    """So that the strict comparison above means something: all outputs of single ops, and most gradients."""
    runs = [run(name) for name in CASES]
    counts = [roundings(done, name) for done in runs for name in results(done.replayed, done.graph)]
    assert sum(count <= 1 for count in counts) > 0.6 * len(counts)
    for name in ("conv2d", "linear", "bmm", "batch_norm training", "layer_norm", "avg_pool2d", "gelu", "exp"):
        assert roundings(run(name), "output 0") == 1


# Whole models, those of `test_replay.py`: no value off the float16 grid is ever read.


@pytest.mark.parametrize("name", MODELS)
def test_no_op_reads_a_value_off_the_grid(name: str) -> None:
    done = run_model(name)  # raises where an operand is off the grid
    kept = [t for v, t in zip(done.graph.variables, done.replayed.arguments) if done.graph.spec(v.tensor).dtype is HALF]
    assert all(on_grid(t) for t in (*done.replayed.outputs, *done.replayed.gradients, *kept))


@pytest.mark.parametrize("name", MODELS)
def test_every_op_of_a_model_is_rounded_once_from_its_exact_result(name: str) -> None:
    shares = run_model(name).step_by_step.shares
    total = Shares(*(sum(getattr(s, field) for s in shares.values()) for field in ("elements", "equal", "close")))
    assert total.elements > 1000
    assert total.share_close >= 0.999
    assert total.share_equal >= 0.999
    for op, share in shares.items():
        assert share.elements - share.close <= max(share.elements // 100, 1), op


def test_resnet_rounds_each_inexact_result_once_and_nothing_else() -> None:
    """Convolutions, sums of gradients and normalisation are rounded; rectifiers, pools and views are not."""
    graph = run_model("resnet18").graph
    rewritten = build(graph, Arithmetic()).module.graph
    values = [n.args[0] for n in rewritten.nodes if n.target in (round_to_half_, clip_to_half_)]
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
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).half()
    done = replayed(Sampled(choice).half(), [x, torch.arange(5)])
    assert all(on_grid(t) for t in (*done.replayed.outputs, *done.replayed.gradients))
    assert any(is_half(node) for node in done.graph.ops.nodes)


# Ops that need no rounding: on all 65,536 bit patterns they give what the native op gives.

aten = torch.ops.aten

ALL = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
_mixed = torch.randperm(2**16, generator=torch.Generator().manual_seed(0))
SQUARE = ALL[_mixed].view(256, 256)
OTHER = ALL[_mixed.flip(0)].view(256, 256)
IMAGES = ALL[_mixed].view(4, 4, 64, 64)
VOLUME = ALL[_mixed].view(2, 2, 16, 32, 32)
ROWS = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(1))
INDEX = torch.randint(0, 256, (256, 256), generator=torch.Generator().manual_seed(2))
MASK = INDEX % 2 == 0
NUMBER = 0.333251953125  # on the grid; what happens to others is the subject of test_half_values.py

x, y, i, v = SQUARE, OTHER, IMAGES, VOLUME
UNARY = (
    aten.relu.default, aten.relu_.default, aten.neg.default, aten.neg_.default, aten.abs.default,
    aten.abs_.default,
    aten.sign.default, aten.sgn.default, aten.round.default, aten.floor.default, aten.ceil.default,
    aten.trunc.default, aten.clone.default, aten.max.default, aten.min.default, aten.tril.default,
    aten.triu.default,
    aten.zeros_like.default, aten.ones_like.default, aten.zero_.default, aten.sort.default, aten.amax.default,
    aten.amin.default,
)  # fmt: skip
CALLS: dict[Any, tuple[Any, ...]] = {
    **dict.fromkeys(UNARY, (x,)),
    aten.maximum.default: (x, y), aten.minimum.default: (x, y),
    aten.max.dim: (x, 1), aten.min.dim: (x, 0), aten.median.dim: (x, 1), aten.kthvalue.default: (x, 7, 1),
    aten.cummax.default: (x, 1), aten.cummin.default: (x, 1), aten.sort.stable: (x,),
    aten.topk.default: (x, 9, 1),
    aten.max_pool2d_with_indices.default: (i, [3, 3], [2, 2], [1, 1]),
    aten.max_pool3d_with_indices.default: (v, [2, 2, 2], [2, 2, 2]),
    aten.adaptive_max_pool2d.default: (i, [5, 5]), aten.adaptive_max_pool3d.default: (v, [5, 5, 5]),
    aten.index.Tensor: (x, [ROWS]), aten._unsafe_index.Tensor: (x, [ROWS]),
    aten.index_select.default: (x, 0, ROWS),
    aten.gather.default: (x, 0, INDEX), aten.embedding.default: (x, ROWS),
    aten.index_copy.default: (x, 0, torch.arange(9), y[:9]), aten.scatter.src: (x, 0, INDEX, y),
    aten.scatter_.src: (x, 0, INDEX, y), aten.cat.default: ([x, y],), aten.stack.default: ([x, y],),
    aten._unsafe_view.default: (x, [65536]), aten._reshape_copy.default: (x, [65536]),
    aten.flip.default: (x, [0]),
    aten.roll.default: (x, [3], [1]), aten.repeat.default: (x, [1, 2]), aten.im2col.default: (i, 3, 1, 0, 1),
    aten.pixel_shuffle.default: (i, 2), aten.pixel_unshuffle.default: (i, 2),
    aten.select_backward.default: (x, [256, 3, 256], 1, 1),
    aten.slice_backward.default: (x, [256, 300], 1, 5, 261, 1),
    aten.diagonal_backward.default: (x.view(4096, 16), [4096, 16, 16], 0, 1, 2),
    aten.slice_scatter.default: (x, y[:5], 0, 3, 8),
    aten.select_scatter.default: (x, y[0], 0, 3), aten.diagonal_scatter.default: (x, y[0]),
    aten.unsafe_split.Tensor: (x, 100), aten.unsafe_split_with_sizes.default: (x, [6, 250]),
    aten.reflection_pad1d.default: (x, [3, 2]), aten.reflection_pad2d.default: (i, [3, 2, 1, 0]),
    aten.reflection_pad3d.default: (v, [3, 2, 1, 0, 1, 1]), aten.replication_pad1d.default: (x, [3, 2]),
    aten.replication_pad2d.default: (i, [3, 2, 1, 0]),
    aten.replication_pad3d.default: (v, [3, 2, 1, 0, 1, 1]),
    aten.upsample_nearest1d.default: (i[0], [100]), aten.upsample_nearest2d.default: (i, [99, 130]),
    aten.upsample_nearest3d.default: (v, [17, 33, 40]), aten.zeros.default: ([4],), aten.ones.default: ([4],),
    aten.new_zeros.default: (x, [4]), aten.new_ones.default: (x, [4]), aten.bernoulli.p: (x, 0.3),
    aten.bernoulli.default: (x.isfinite().to(x.dtype),), aten.bernoulli_.float: (x, 0.3),
    aten.bernoulli_.Tensor: (x, x.isfinite().to(x.dtype)),
    aten.clamp.default: (x, -NUMBER, NUMBER), aten.clamp_.default: (x, -NUMBER, NUMBER),
    aten.clamp_min.default: (x, NUMBER), aten.clamp_min_.default: (x, NUMBER),
    aten.clamp_max.default: (x, NUMBER),
    aten.clamp_max_.default: (x, NUMBER), aten.hardtanh.default: (x, -NUMBER, NUMBER),
    aten.hardtanh_.default: (x, -NUMBER, NUMBER), aten.hardtanh_backward.default: (x, y, -NUMBER, NUMBER),
    aten.threshold.default: (x, 0.5, NUMBER), aten.threshold_.default: (x, 0.5, NUMBER),
    aten.threshold_backward.default: (x, y, 0.5), aten.hardshrink.default: (x, NUMBER),
    aten.where.self: (MASK, x, y), aten.where.ScalarOther: (MASK, x, NUMBER),
    aten.where.ScalarSelf: (MASK, NUMBER, x),
    aten.masked_fill.Scalar: (x, MASK, NUMBER), aten.masked_fill_.Scalar: (x, MASK, NUMBER),
    aten.masked_fill.Tensor: (x, MASK, y[0, 0]), aten.masked_fill_.Tensor: (x, MASK, y[0, 0]),
    aten.fill.Scalar: (x, NUMBER), aten.fill_.Scalar: (x, NUMBER), aten.full.default: ([4], NUMBER),
    aten.full_like.default: (x, NUMBER), aten.new_full.default: (x, [4], NUMBER),
    aten.scalar_tensor.default: (NUMBER,), aten.constant_pad_nd.default: (x, [1, 2], NUMBER),
    aten.scatter.value: (x, 0, INDEX, NUMBER), aten.scatter_.value: (x, 0, INDEX, NUMBER),
    aten.index_fill.int_Scalar: (x, 0, ROWS, NUMBER), aten.index_fill_.int_Scalar: (x, 0, ROWS, NUMBER),
}  # fmt: skip
RANDOM = {aten.bernoulli.p, aten.bernoulli.default, aten.bernoulli_.float, aten.bernoulli_.Tensor}


def call(op: Callable[..., Any], convert: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Call `op` on copies of its operands; return its floating results."""

    def prepared(value: Any) -> Any:
        if isinstance(value, list):
            return [prepared(item) for item in value]
        return convert(value).clone() if isinstance(value, Tensor) and value.is_floating_point() else value

    settings = {"stable": True} if op is aten.sort.stable else {}
    result = op(*(prepared(value) for value in CALLS[op]), **settings)
    return [t for t in (result if isinstance(result, (tuple, list)) else [result]) if t.is_floating_point()]


@pytest.mark.parametrize("op", sorted((EXACT | SELECTING) - UNINITIALISED, key=str), ids=str)
def test_results_on_all_float16_values_are_float16_values(op: Callable[..., Any]) -> None:
    results = call(op, Tensor.float)
    assert results
    factories = op in (aten.zeros.default, aten.ones.default, aten.full.default, aten.scalar_tensor.default)
    assert all(on_grid(result) for result in results)
    if op not in RANDOM and not factories:
        for mine, native in zip(results, call(op, Tensor.half), strict=True):
            assert int(ulps(mine, native.float()).max()) == 0
            zero = mine == 0
            assert torch.equal(mine.signbit() & zero, native.signbit() & zero)


@pytest.mark.parametrize("op", sorted(COMPARING, key=str), ids=str)
def test_comparisons_with_a_number_of_the_grid_are_the_native_ones(op: Callable[..., Any]) -> None:
    assert torch.equal(op(x.float(), NUMBER), op(x, NUMBER))


@pytest.mark.parametrize("source", [torch.uint8, torch.int8, torch.bool, torch.float16])
def test_conversions_from_narrow_types_need_no_rounding(source: torch.dtype) -> None:
    values = torch.arange(-128, 256).to(source) if source is not torch.float16 else ALL
    assert on_grid(aten._to_copy.default(values, dtype=torch.float32))
    assert on_grid(aten.copy_.default(torch.zeros(values.shape), values))
    assert aten._to_copy.default in CONVERTING
    assert aten.copy_.default in CONVERTING
