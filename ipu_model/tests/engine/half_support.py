"""Small functions as half-precision models: their replay, and an oracle that says what every op should give.

The oracle computes a graph op by op in float64 and rounds every float16 result once. It shares no arithmetic with
`ipu_model.compute`: rounding is numpy's float64 -> float16, clipped (torch's `double.to(half)` rounds twice, through
float32; capture-and-replay-notes.md, section 6), and ops that only compare run on real float16 tensors, where PyTorch
converts Python numbers to float16 first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.fx
import torch.nn.functional as F
from net_support import Net, session_of, traced
from torch import Tensor, nn
from torch.utils._pytree import tree_map, tree_map_only

from ipu_model.capture import tracing
from ipu_model.capture.device_ops import recurrent_layers
from ipu_model.capture.graph import Graph, info_of, is_half
from ipu_model.compute.half_precision import make_nan_, overloads
from ipu_model.compute.replay import Arithmetic, build
from ipu_model.compute.rounding import clip_to_half_, round_to_half_

Node = torch.fx.Node
HALF = torch.float16


class Case:
    """A function of tensors that get gradients, of inputs and of buffers, which returns what is differentiated."""

    def __init__(
        self, compute: Callable[..., Tensor], *weights: Tensor, inputs: Sequence[Tensor] = (), buffers: Any = ()
    ) -> None:
        self.compute, self.inputs = compute, inputs
        self.weights = {f"w{index}": tensor for index, tensor in enumerate(weights)}
        self.buffers = {f"b{index}": tensor for index, tensor in enumerate(buffers)}


def module_of(case: Case, dtype: torch.dtype = HALF) -> Net:
    """Return a module that computes a case and makes its result the loss, whatever its shape."""

    def forward(net: Net, *inputs: Tensor) -> Tensor:
        weights, buffers = ([getattr(net, name) for name in names] for names in (case.weights, case.buffers))
        result = case.compute(*weights, *inputs, *buffers)
        trace = tracing.current()
        if trace is not None:
            trace.loss_marks.append(result)
        return result

    module = Net(forward, **{name: nn.Parameter(tensor.to(dtype)) for name, tensor in case.weights.items()})
    for name, tensor in case.buffers.items():
        module.register_buffer(name, tensor.to(dtype))
    return module


def plain_pytorch(case: Case, seed: Tensor) -> dict[str, Tensor]:
    """Return the results of `case` computed by PyTorch alone in float64."""
    module = module_of(case, torch.float64)
    output = module(*(t.double() if t.is_floating_point() else t for t in case.inputs))
    weights = dict(module.named_parameters())
    gradients = torch.autograd.grad(output, list(weights.values()), seed.double())
    results = {"output 0": output.detach(), **{f"gradient of {name}": g for name, g in zip(weights, gradients)}}
    return results | {f"buffer {name}": buffer for name, buffer in module.named_buffers()}


_random = torch.Generator().manual_seed(0)


def half(*values: float) -> Tensor:
    return torch.tensor(values, dtype=HALF)


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    """Normal numbers on the float16 grid."""
    return (torch.randn(shape, generator=_random) * scale).half()


def between(low: float, high: float, *shape: int) -> Tensor:
    """Uniform numbers on the float16 grid."""
    return (torch.rand(shape, generator=_random) * (high - low) + low).half()


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=_random)


def infer(function: Callable[..., Any] | nn.Module, *inputs: Tensor, **settings: Any) -> list[Tensor]:
    """Return what a model without loss returns for one micro-batch; `settings` are those of `Arithmetic`."""
    module = function if isinstance(function, nn.Module) else Net(lambda net, *tensors: function(*tensors))
    session = session_of(module, *inputs, training=False, arithmetic=Arithmetic(**settings))
    return session.run(list(inputs))


def infer_each(functions: Sequence[Callable[..., Tensor]], *inputs: Tensor, **settings: Any) -> list[Tensor]:
    """Return what each function returns for the same inputs; one model computes them all."""
    return infer(lambda *tensors: tuple(function(*tensors) for function in functions), *inputs, **settings)


def differentiate(function: Callable[..., Tensor], seed: Tensor, *weights: Tensor) -> list[Tensor]:
    """Return the output of `function(*weights)` and its gradients for the loss gradient `seed`."""
    return list(Run(module_of(Case(function, *weights)), seed=seed).results.values())


class Run:
    """One micro-batch of a module, forward and backward, replayed while somebody looks at every op.

    Raises `AssertionError` if an op of the rewritten graph reads a float16 operand with a value off the grid.
    """

    def __init__(self, module: nn.Module, *inputs: Tensor, seed: Tensor | None = None, **settings: Any) -> None:
        self.graph = traced(module, *inputs)
        assert self.graph.loss_spec is not None
        drawn = torch.randn(self.graph.loss_spec.shape, generator=torch.Generator().manual_seed(1)).half()
        self.seed, state = drawn if seed is None else seed, module.state_dict()
        self.arguments = [*(state[variable.name] for variable in self.graph.variables), *inputs, self.seed]
        containers = [(a.float() if a.is_floating_point() else a).clone() for a in self.arguments]
        watch = _Watch(build(self.graph, Arithmetic(**settings), torch.Generator()).module)
        with torch.no_grad():
            outputs, gradients = watch.run(*containers)
        self._seen, graph = watch.seen, self.graph
        # Outputs, gradients and buffers that are float16 on the device.
        self.results = {f"output {i}": t for i, t in enumerate(outputs) if graph.outputs[i].spec.dtype is HALF}
        self.results |= {f"gradient of {n}": t for n, t in zip(graph.gradients, gradients)}
        buffers = [(v, t) for v, t in zip(graph.variables, containers) if v.is_buffer]
        self.results |= {f"buffer {v.name}": t for v, t in buffers if graph.spec(v.tensor).dtype is HALF}

    @cached_property
    def distances(self) -> dict[str, Tensor]:
        """By kind of op, how far each of its results is from the oracle's for the same operands."""
        oracle = Oracle(self.graph, self._seen)
        oracle.run(*(_widened(argument).clone() for argument in self.arguments))
        return {kind: torch.cat(distances) for kind, distances in oracle.distances.items()}


class _Watch(torch.fx.Interpreter):
    """Runs a replay node by node, keeps copies of results and checks operands."""

    # What a replay inserts after ops of half precision.
    TIDYING = frozenset({round_to_half_, clip_to_half_, make_nan_})

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[str, Tensor] = {}

    def run_node(self, n: Node) -> Any:
        if n.target not in self.TIDYING:
            for operand in n.all_input_nodes:
                may_be_read = not is_half(operand) or _is_unrounded(operand) or on_grid(self.env[operand])
                assert may_be_read, f"{operand} is off the float16 grid when {n} reads it"
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.seen[n.args[0].name if n.target in self.TIDYING else n.name] = result.clone()
        return result


def rounded(x: Tensor) -> Tensor:
    """Clip float64 `x` to +-65504 and round it to the float16 grid, once, ties to even; the result is float64."""
    with np.errstate(invalid="ignore"):
        clipped = np.clip(x.detach().numpy(), -65504.0, 65504.0)
    return torch.from_numpy(np.asarray(clipped.astype(np.float16), dtype=np.float64))


def on_grid(x: Tensor) -> bool:
    """Whether every value of `x` (any floating type) is a float16 number, an infinity or NaN."""
    # A conversion there and back, however it rounds, changes exactly the values that are off the grid.
    return bool(((x == x.half()) | x.isnan()).all())


def ulps(actual: Tensor, expected: Tensor) -> Tensor:
    """Count the float16 numbers between two tensors' values, both on the grid; only NaN is near NaN."""

    def ordered(x: Tensor) -> Tensor:
        """Map float16 values to integers in their order, neighbours one apart, both zeros to 0."""
        bits = x.detach().contiguous().half().view(torch.int16).to(torch.int32)
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    distance = (ordered(actual) - ordered(expected)).abs()
    distance[actual.isnan() & expected.isnan()] = 0
    distance[actual.isnan() ^ expected.isnan()] = 1 << 20
    return distance


EMPTY = overloads("empty.memory_format empty_like empty_strided new_empty new_empty_strided")
# What forward keeps for its own backward op in float32: means, inverse deviations, the divisor of a mean.
SAVED = {
    **dict.fromkeys(overloads("native_batch_norm native_layer_norm native_group_norm"), (1, 2)),
    **dict.fromkeys(overloads("nll_loss_forward nll_loss2d_forward"), (1,)),
}
# Loops over steps: what a step stores is rounded, by numpy from float64. That the formulas are those of the layers is
# tested against PyTorch's own.
RECURRENT = {
    op: partial(compute, kind)
    for name, kind in recurrent_layers.KINDS.items()
    for op, compute in (
        (recurrent_layers.LAYER_OPS[name].forward, recurrent_layers.forward),
        (recurrent_layers.LAYER_OPS[name].backward, recurrent_layers.backward),
    )
}
# They move what their operands hold, an infinity that the program wrote too; everything else clips it.
MOVING = overloads(
    "where.self where.ScalarSelf where.ScalarOther masked_fill.Scalar masked_fill.Tensor full full_like scalar_tensor "
    "cat clone"
)
# In float64 their results are infinite only where they divide by zero, which gives NaN.
DIVIDING = overloads("div.Tensor div.Scalar reciprocal rsqrt log")
PROMOTING = overloads("add.Tensor sub.Tensor mul.Tensor div.Tensor")
COMPARING = overloads(" ".join(f"{name}.Scalar {name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")))


class Oracle(torch.fx.Interpreter):
    """Computes a graph for given variables, inputs and loss seed, all of which it may change.

    Each op computes from the results that were observed in a replay instead of the oracle's own, so that errors do not
    add up; `distances` says for each kind of op how they compare.
    """

    def __init__(self, graph: Graph, observed: Mapping[str, Tensor]) -> None:
        constants = nn.Module()
        for name, tensor in graph.constants.items():
            constants.register_buffer(name, _widened(tensor))
        super().__init__(torch.fx.GraphModule(constants, graph.ops))
        self._observed = observed
        self.distances: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def run(self, *arguments: Tensor) -> Any:
        return super().run(*arguments)

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function":
            result = super().run_node(n)
            return result.clone() if n.op == "get_attr" else result
        result = self._computed(n)
        if isinstance(result, Tensor) and n.name in self._observed:
            seen = self._observed[n.name]
            random = torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())
            if is_half(n) and not random and not _is_unrounded(n):
                kind = n.args[0].target if n.target is operator.getitem else n.target
                self.distances.setdefault(str(kind), []).append(ulps(seen, result).flatten())
            if not torch.equal(result, seen.to(result.dtype)):
                result.copy_(seen)
        return result

    def _computed(self, node: Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if node.target in COMPARING and is_half(node.args[0]):
            return node.target(*tree_map_only(Tensor, _narrowed, args))
        if node.target in RECURRENT and info_of(node).spec[0].dtype is HALF:
            return RECURRENT[node.target](*args, stored=rounded)
        if node.target in PROMOTING and is_half(node):
            # Integer operands of float16 arithmetic become float16 numbers first, as type promotion says.
            args = tree_map_only(Tensor, lambda a: a if a.is_floating_point() else rounded(a.double()), args)
        result = node.target(*_in_float64(args), **_in_float64(kwargs))
        if is_half(node) and node.target in DIVIDING:
            result.masked_fill_(result.isinf(), torch.nan)
        moves = node.target in MOVING or getattr(node.target, "is_view", False)
        if is_half(node) and not _is_unrounded(node) and not moves:
            _round_in_place(result)
        if node.target is torch.ops.aten.native_batch_norm.default:
            for position in (3, 4):
                if is_half(node.args[position]):
                    _round_in_place(args[position])
        return result


def _is_unrounded(node: Node) -> bool:
    if node.target in EMPTY:
        return True
    return node.target is operator.getitem and node.args[1] in SAVED.get(node.args[0].target, ())


def _round_in_place(result: Tensor) -> None:
    grid = rounded(result)
    if not torch.equal(grid, result):  # what is expanded cannot be written
        result.copy_(grid)


def _narrowed(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy().astype(np.float16)) if x.dtype is torch.float64 else x


def _widened(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _in_float64(arguments: Any) -> Any:
    """Ask for float64 wherever the recorded op was asked for a narrower floating type."""
    narrow = (HALF, torch.float32)
    return tree_map(lambda a: torch.float64 if isinstance(a, torch.dtype) and a in narrow else a, arguments)


# --- the ops that half precision is tested on, by name: contractions, then everything else, then losses


IMAGE = normal(4, 8, 9, 9)
WIDE, BIAS, LONG, COLUMNS = normal(2, 256, 6, 6), normal(16, scale=0.05), normal(8, 512), normal(512, 24, scale=0.05)
STACKS = normal(2, 8, 512), normal(2, 512, 24, scale=0.05)

# Many terms in every sum, so that half partials matter; some are short.
CONTRACTIONS = {
    "conv1d": Case(F.conv1d, normal(2, 256, 12), normal(16, 256, 3, scale=0.02), BIAS),
    "conv2d": Case(F.conv2d, WIDE, normal(16, 256, 3, 3, scale=0.02), BIAS),
    "conv2d strided": Case(partial(F.conv2d, stride=2, padding=1), WIDE, normal(16, 256, 3, 3, scale=0.02), BIAS),
    "conv2d grouped": Case(partial(F.conv2d, groups=2, padding=1), WIDE, normal(16, 128, 3, 3, scale=0.03), BIAS),
    "conv2d depthwise": Case(partial(F.conv2d, groups=8, padding=1), IMAGE, normal(8, 1, 3, 3, scale=0.3), normal(8)),
    "conv3d": Case(partial(F.conv3d, dilation=2), normal(1, 128, 4, 5, 4), normal(8, 128, 2, 2, 2, scale=0.03)),
    "conv_transpose1d": Case(F.conv_transpose1d, normal(3, 16, 20), normal(16, 5, 3, scale=0.2)),
    "conv_transpose2d": Case(
        partial(F.conv_transpose2d, stride=2, output_padding=1), WIDE, normal(256, 16, 3, 3, scale=0.02), BIAS
    ),
    "conv_transpose2d grouped": Case(partial(F.conv_transpose2d, groups=2), WIDE, normal(256, 8, 3, 3, scale=0.03)),
    "linear": Case(F.linear, LONG, normal(24, 512, scale=0.05), normal(24)),
    "linear on sequences": Case(F.linear, normal(2, 5, 33), normal(20, 33, scale=0.2), normal(20)),
    "mm": Case(torch.mm, LONG, COLUMNS),
    "bmm": Case(torch.bmm, *STACKS),
    "mv": Case(torch.mv, LONG, normal(512)),
    "dot": Case(torch.dot, between(0.1, 3, 512), between(0.1, 3, 512)),
    "matmul broadcast": Case(torch.matmul, normal(2, 1, 5, 40), normal(3, 40, 6, scale=0.2)),
    "einsum": Case(lambda a, b: torch.einsum("bik,bjk->bij", a, b), normal(3, 5, 40), normal(3, 6, 40)),
    "addmm": Case(partial(torch.addmm, beta=0.5, alpha=2.0), normal(24), LONG, COLUMNS),
    "baddbmm": Case(torch.baddbmm, normal(2, 8, 24), *STACKS),
}


def batch_norm(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor, training: bool = True) -> Tensor:
    return F.batch_norm(x, mean, variance, w, b, training=training)


def assign_slice(x: Tensor) -> Tensor:
    out = x * 0.1
    out[:, ::2] = 0.3
    out[3] += x[4]
    return out


def recurrent(module: nn.Module) -> Case:
    shapes = {name: weight.shape for name, weight in module.named_parameters()}

    def compute(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(shapes, weights)), (x,))[0]

    return Case(compute, normal(5, 3, 10), *(normal(*shape, scale=0.2) for shape in shapes.values()))


AFFINE, STATISTICS = (between(0.1, 3, 8), normal(8)), (normal(8, scale=0.1), between(0.1, 3, 8))
ATTEND, QUERIES = F.scaled_dot_product_attention, (normal(2, 4, 10, 16), normal(2, 4, 12, 16), normal(2, 4, 12, 16))
MASK = integers(2, 10, 12).bool().logical_or(torch.eye(10, 12, dtype=torch.bool))
A, ROWS = normal(30, 40), integers(30, 12)
# Besides the examples of `operator_examples.toml`, which are smaller.
OTHERS = {
    "batch_norm training": Case(batch_norm, IMAGE, *AFFINE, buffers=STATISTICS),
    "batch_norm evaluation": Case(partial(batch_norm, training=False), IMAGE, *AFFINE, buffers=STATISTICS),
    "layer_norm": Case(lambda x, w, b: F.layer_norm(x, (40,), w, b), A, between(0.1, 3, 40), normal(40)),
    "group_norm": Case(lambda x, w, b: F.group_norm(x, 4, w, b), IMAGE, *AFFINE),
    "max_pool2d overlapping": Case(partial(F.max_pool2d, kernel_size=3, stride=1), IMAGE),
    "attention": Case(ATTEND, *QUERIES),
    "attention bool mask": Case(ATTEND, *QUERIES, inputs=[MASK]),
    "attention added mask": Case(ATTEND, *QUERIES, inputs=[torch.zeros(10, 12).masked_fill(~MASK, -torch.inf).half()]),
    "add broadcast": Case(torch.add, A, normal(40)),
    "power tensor": Case(torch.pow, between(0.1, 3, 30, 40), A),
    "scatter_add": Case(
        lambda x, i: torch.zeros_like(x[:7]).scatter_add(0, (i % 7)[:, None].expand(12, 40), x[:12]), A, inputs=[ROWS]
    ),
    "numbers": Case(lambda x: (x + 0.1) * 0.1 / 7 + x**3, A),
    "slice assignment": Case(assign_slice, A),
    "in place": Case(lambda x: (x * 1).add_(0.1).mul_(0.3), A),
    "lstm": recurrent(nn.LSTM(10, 12)),
    "gru": recurrent(nn.GRU(10, 12)),
    "gru without biases": recurrent(nn.GRU(10, 12, bias=False)),
    "rnn": recurrent(nn.RNN(10, 12)),
    "rectified rnn": recurrent(nn.RNN(10, 12, nonlinearity="relu")),
}


def ctc_loss(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return F.ctc_loss(F.log_softmax(logits, 2), targets, (9, 9, 8), (4, 3, 4), reduction=reduction)


# A function, what gets gradients, and the target, which gets none.
LOSSES: list[tuple[Callable[..., Any], Tensor, Tensor]] = [
    (F.mse_loss, normal(12, 10), normal(12, 10)),
    (partial(F.cross_entropy, label_smoothing=0.1), normal(12, 10), integers(10, 12)),
    (ctc_loss, normal(9, 3, 6), integers(5, 3, 4) + 1),
]
TABLE = CONTRACTIONS | OTHERS
TABLE |= {
    f"loss {number}, {reduction}": Case(partial(function, reduction=reduction), weight, inputs=[target])
    for number, (function, weight, target) in enumerate(LOSSES)
    for reduction in ("mean", "sum", "none")
}
