"""Half precision op by op, forward and backward: fp32 arithmetic, one rounding to float16 for every op.

Expected values come from `half_oracle.py` (float64, rounded once by numpy) and,
independently of the captured graph,
from PyTorch itself in float64. The bound, one float16 number for 99 % of the elements,
is the project's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from half_cases import Case, Op
from half_loss_table import losses
from half_op_table import table
from half_oracle import Replayed, Truth, interpret, on_grid, replay, rounded, ulps
from torch import Tensor
from tracing_support import traced

from ipu_model.graph import Graph

CASES = [*table(), *losses()]
HALF = torch.float16

# PyTorch announces a change of `kl_div`.
pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")


@dataclass(frozen=True)
class Run:
    """A case traced in half precision and replayed, with what the oracle says about it."""

    graph: Graph
    replayed: Replayed
    from_start: Truth
    step_by_step: Truth
    seed: Tensor


_runs: dict[str, Run] = {}


def run(case: Case) -> Run:
    """Trace and replay `case` once for all tests."""
    if case.name not in _runs:
        module, inputs = Op(case, HALF), list(case.inputs.values())
        graph = traced(module, *inputs)
        assert graph.loss_spec is not None
        seed = torch.randn(graph.loss_spec.shape, generator=torch.Generator().manual_seed(1)).half()
        state = module.state_dict()
        arguments = [*(state[v.name] for v in graph.variables), *inputs, seed]
        replayed = replay(graph, arguments)
        truths = interpret(graph, arguments), interpret(graph, arguments, replayed.seen)
        _runs[case.name] = Run(graph, replayed, *truths, seed)
    return _runs[case.name]


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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_op_of_the_graph_is_rounded_once_from_its_exact_result(case: Case) -> None:
    shares = run(case).step_by_step.shares
    assert shares, "no float16 result was compared"
    for op, share in shares.items():
        assert share.elements - share.close <= (share.elements // 100 or 1), op
        if share.elements >= 100:
            assert share.share_equal >= 0.98, f"{op}: not rounded to nearest"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_lie_on_the_float16_grid(case: Case) -> None:
    done = run(case)
    for name, tensor in results(done.replayed, done.graph).items():
        assert on_grid(tensor), name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_equal_the_oracles_and_plain_pytorchs_in_float64(case: Case) -> None:
    """Element by element where one rounding lies on the way, else relative to the largest element."""
    done = run(case)
    actual, expected = results(done.replayed, done.graph), results(done.from_start, done.graph)
    truth = plain_pytorch(case, done.seed)
    assert actual.keys() == expected.keys() == truth.keys()
    for name, tensor in actual.items():
        if roundings(done, name) <= 1:
            assert_close(tensor, expected[name], name)
            assert_close(tensor, truth[name], f"{name} against plain PyTorch")
        else:
            scale = float(truth[name].abs().max())
            assert_near(tensor, expected[name], 2.0**-9 * scale, f"{name} against the oracle")
            assert_near(tensor, truth[name], 2.0**-6 * scale, f"{name} against plain PyTorch")


def roundings(done: Run, name: str) -> int:
    """Count the roundings on the way to a result; those of running statistics are not followed."""
    kind, _, rest = name.partition(" ")
    if kind == "buffer":
        return 1
    if kind == "gradient":
        return done.from_start.roundings.get(done.graph.gradients[rest.removeprefix("of ")], 0)
    node = done.graph.outputs[int(rest)].node
    return done.from_start.roundings.get(str(node), 0)


def assert_near(actual: Tensor, expected: Tensor, bound: float, what: str) -> None:
    error = float((actual.double() - expected).abs().max())
    assert error <= bound, f"{what}: {error} > {bound}"


def test_most_results_are_exact_results_rounded_once() -> None:
    """So that the strict comparison above means something: all outputs of single ops, and most gradients."""
    runs = [run(case) for case in CASES]
    counts = [roundings(done, name) for done in runs for name in results(done.replayed, done.graph)]
    assert sum(count <= 1 for count in counts) > 0.6 * len(counts)
    for name in ("conv2d", "linear", "bmm", "batch_norm training", "layer_norm", "avg_pool2d", "gelu", "exp"):
        (case,) = (case for case in CASES if case.name == name)
        assert roundings(run(case), "output 0") == 1
