"""Arguments that PopTorch's functions refuse, on the CPU, when traced for inference, or in a training model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from function_models import in_training, on_device, quiet_options
from torch import Tensor, nn

import poptorch
from poptorch import Attribute, MatMulSerializationMode, MultiConv, NameScope, OverlapMode

Error, Function = poptorch.Error, Callable[..., Any]
X = torch.arange(24.0).reshape(6, 4)
ROWS, START = torch.arange(72.0).reshape(2, 6, 6), torch.tensor([0], dtype=torch.int32)
IMAGE = torch.linspace(-1, 1, 25).reshape(1, 1, 5, 5)
LEFT, RIGHT = torch.ones(6, 4), torch.ones(4, 10)
REDUCING = MatMulSerializationMode.ReducingDim
OVERLAPS = (poptorch.set_overlap_for_input, poptorch.set_overlap_for_output)
POINTS, OTHERS = torch.rand(20, 3), torch.rand(15, 3)
SCORES, LENGTHS, CLASSES = torch.zeros(5, 2, 3), torch.tensor([5, 3]), 3


def positive(x: Tensor) -> Tensor:
    return x.sum() >= 0


def loss(function: Function) -> Function:
    return lambda m, x: poptorch.identity_loss(m.linear(function(x)), "sum")


def with_each(base: dict[str, Any], *changes: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the arguments with one change each, and the name of the argument that is wrong."""
    return [(next(iter(change)), {**base, **change}) for change in changes]


CUSTOM = {"inputs": [X], "name": "Cube", "domain": "test.ops", "domain_version": 1, "example_outputs": [X]}
ON_THE_CPU: list[tuple[Function, type[Exception], str]] = [
    *(
        (lambda w=w: poptorch.recomputationCheckpoint(*w), ValueError, "inputs must be tensors")
        for w in ((3,), (X, None), ([X, "a"],), ([[X]],), ({"x": X},))
    ),
    *(
        (lambda f=f, w=w, more=more: f(w, *more), Error, rf"poptorch\.{f.__name__} must take a torch\.tensor argument")
        for f, more in ((poptorch.nop, ()), (poptorch.set_available_memory, (0.3,)), (poptorch.ipu_print_tensor, ()))
        for w in (1, [X], None)
    ),
    *(
        (lambda w=w: poptorch.serializedMatMul(LEFT, RIGHT, **w), AssertionError, f"{name} takes a")
        for name, w in with_each(
            {"mode": REDUCING, "factor": 2},
            {"mode": "reducing_dim"}, {"mode": None}, {"factor": 2.0}, {"factor": "2"}, {"keep_precision": 1},
        )
    ),
    *(
        (lambda r=r: poptorch.identity_loss(torch.ones(2), r), AssertionError, "Unsupported reduction type!")
        for r in ("average", "Sum", "", None)
    ),
    (lambda: poptorch.identity_loss([torch.ones(2)], "sum"), AssertionError, r"identity_loss takes a torch\.Tensor"),
    *((lambda w=w: NameScope(w), AssertionError, "must be a string; got") for w in (1, None, ["a"])),
    *(
        (lambda name=name, w=w: getattr(MultiConv(), name)(w), error, words)
        for name, error, words, wrong in (
            ("availableMemoryProportions", AssertionError, "Invalid available memory", (1, [], [0.1, 1], "0.1")),
            ("partialsTypes", ValueError, "Invalid partials types", ("half", torch.int32, [torch.half, None], [])),
            ("planType", AssertionError, "Invalid plan type!", ("parallel", 0)),
            ("perConvReservedTiles", AssertionError, "reserved tiles", (1.0,)),
            ("cycleBackOff", AssertionError, "cycle back-off", (1,)),
            ("enableConvDithering", ValueError, "must be bool or list of bools", (1, [True, 0])),
        )
        for w in wrong
    ),
    *(
        (lambda f=f, m=m: f(X, m), AssertionError, r"takes a poptorch\.OverlapMode")
        for f in OVERLAPS
        for m in ("no_overlap", 0, None)
    ),
    *(
        (lambda i=i: poptorch.for_loop(2, lambda *t: list(t), i), ValueError, words)
        for i, words in (((X,), "is not list"), (X, "is not list"), ([X, 3], "index 1 is not torch.tensor"))
    ),
    *(
        (lambda a=a, b=b: poptorch.cond(positive(X), lambda t: t, a, lambda t: t, b), ValueError, words)
        for a, b, words in (
            ((X,), [X], "is not list"), ([X], X, "is not list"), ([X], ["a"], "index 0 is not torch.tensor"),
        )
    ),
    *(
        (lambda w=w: poptorch.dynamic_slice(**w), Error, rf"poptorch\.dynamic_slice: {name} must be")
        for name, w in with_each(
            {"tensor": ROWS, "dim": 1, "start": START, "size": 2, "step": 1},
            {"tensor": [1, 2]}, {"dim": 1.0}, {"start": 1}, {"size": "2"}, {"step": None},
            {"start": torch.tensor([1.0])}, {"start": torch.tensor([1, 2])},
        )
    ),
    (lambda: poptorch.dynamic_slice(ROWS, 3, START, 2, 1), Error, r"poptorch\.dynamic_slice: .* dimension 3"),
    *(
        (lambda s=s: poptorch.dynamic_update(ROWS, s, 1, START, 2), Error, words)
        for s, words in (
            (torch.ones(2, 2), "same dimensionality"), (torch.ones(2, 2, 6).int(), "same dtype"),
            (torch.ones(2, 3, 6), "src must have the shape"),
        )
    ),
    *(
        (lambda w=w: poptorch.fps(**w), Error, rf"poptorch\.fps: {name} ")
        for name, w in with_each(
            {"src": POINTS, "ptr": [0, 20]},
            {"src": [[1.0]]}, {"src": torch.tensor(1.0)}, {"ptr": torch.tensor([0, 20])}, {"ptr": [0, 20.0]},
            {"ptr": [0]}, {"ptr": [0, 21]}, {"ptr": [-1, 5]}, {"ptr": [5, 2]}, {"ratio": "0.5"}, {"ratio": 0.0},
            {"ratio": 1.5}, {"ratio": True}, {"random_start": 1},
        )
    ),
    *(
        (lambda w=w: poptorch.nearest(**w), Error, rf"poptorch\.nearest: {name} ")
        for name, w in with_each(
            {"x": POINTS, "y": OTHERS}, {"x": [1.0]}, {"y": 2}, {"batch_x": 3}, {"batch_y": [0.5] * 15}
        )
    ),
    *(
        (lambda w=w: poptorch.nearest(**{"x": POINTS, "y": OTHERS, **w}), ValueError, words)
        for w, words in (
            ({"x": torch.rand(2, 3, 3)}, "x must have 1 or 2 dimensions"),
            ({"y": torch.rand(15, 4)}, "same number of features"),
            ({"batch_x": [0] * 19}, "batch_x must have 20 entries, not 19"),
            ({"batch_y": torch.zeros(14)}, r"batch_y must have 15 entries, not \[14\]"),
            ({"batch_x": [1] + [0] * 19}, "batch_x must be sorted"),
            ({"batch_x": [0] * 20, "batch_y": [0] * 14 + [1]}, "same batch elements"),
            ({"y": torch.rand(0, 3)}, "y has no rows"),
        )
    ),
    *(
        (lambda w=w: poptorch.ctc_beam_search_decoder(**w), Error, rf"poptorch\.ctc_beam_search_decoder: {name} ")
        for name, w in with_each(
            {"probs": SCORES, "lengths": LENGTHS},
            {"probs": [0.0]}, {"probs": torch.zeros(2, 3)}, {"probs": torch.zeros(2, 2, 3, dtype=torch.int32)},
            {"lengths": [5, 3]}, {"lengths": torch.tensor([5])}, {"lengths": torch.tensor([5.0, 3.0])},
            {"blank": 0.0}, {"blank": CLASSES}, {"blank": -1}, {"beam_width": "9"}, {"top_paths": 0},
            {"top_paths": 101},
        )
    ),
    *(
        (lambda w=w: poptorch.custom_op(**w), Error, rf"poptorch\.custom_op: {name} must be")
        for name, w in with_each(
            CUSTOM, {"inputs": X}, {"inputs": [1]}, {"name": 1}, {"domain": None}, {"domain_version": "1"},
            {"example_outputs": []}, {"example_outputs": [1]},
        )
    ),
    *(
        (lambda a=a: poptorch.custom_op(**CUSTOM, attributes=a), error, words)
        for a, error, words in (
            ({1: 2}, ValueError, "keys must be strings"),
            ({"a": None}, ValueError, "unsupported type"),
            ({"a": []}, ValueError, "'a' is an empty list, whose type is unknown"),
            ({"a": [1, 2.0]}, ValueError, "must all be the same"),
            ({"a": [True, 2]}, ValueError, "must all be the same"),
            ({"é": 1}, ValueError, "contains non-ASCII characters"),
            ({"a": "é"}, ValueError, "contains non-ASCII characters"),
            ({"a": ["b", "é"]}, ValueError, "contains non-ASCII characters"),
            ({"a": 2**63}, ValueError, "does not fit in 64 bits"),
            ({"a": 1e39}, Error, r"1e\+39 is too high for a Popart float attribute"),
            ({"a": [1.0, -4.5e38]}, Error, r"-4.5e\+38 is too low for a Popart float attribute"),
        )
    ),
    *(
        (lambda w=w: poptorch.CPU(*w), Error, r"poptorch\.CPU: (layer_to_call|ID) must be")
        for w in ((1, "op"), (abs, 2))
    ),
    *(
        (lambda w=w: poptorch.BeginBlock(w), Error, r"not an instance of torch\.nn\.Module or function")
        for w in (None, 3, "layer")
    ),
    (
        lambda: poptorch.BeginBlock(poptorch.BeginBlock(nn.Linear(1, 1))),
        Error,
        r"already been assigned to a block.*removeBlocks",
    ),
    (lambda: poptorch.removeBlocks(abs), AssertionError, r"removeBlocks takes a torch\.nn\.Module"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), ON_THE_CPU)
def test_on_the_cpu(call: Function, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def nested_loop(m: Any, x: Tensor) -> Any:
    return poptorch.for_loop(2, lambda t: poptorch.for_loop(2, lambda u: u + 1, [t])[0], [x])


def loop_that_writes(m: Any, x: Tensor) -> Any:
    outer = x + 0
    return poptorch.for_loop(2, lambda t: t + outer[0].add_(1), [x])


def branch_that_writes(m: Any, x: Tensor) -> Any:
    outer = x + 0
    return poptorch.cond(positive(x), lambda: outer.add_(1), [], lambda: x, [])


def empty_multi_conv(m: Any, x: Tensor) -> Any:
    with MultiConv():
        return x.relu()


def nested_multi_conv(m: Any, x: Tensor) -> Any:
    with MultiConv():
        y = m.conv_a(x)
        with MultiConv():
            return y + m.conv_b(x)


def three_proportions(m: Any, x: Tensor) -> Any:
    with MultiConv().availableMemoryProportions([0.1, 0.2, 0.3]):
        return m.conv_a(x) + m.conv_b(x)


def cpu(function: Function, name: str = "op") -> Function:
    op = poptorch.CPU(function, name)
    return lambda m, *inputs: op(*inputs)


def fickle(later: Any) -> Function:
    results = iter([torch.zeros(6, 4), later])
    return cpu(lambda x: next(results), "fickle")


INNER = poptorch.CPU(lambda x: x, "inner")
LENGTH_OF = {
    MatMulSerializationMode.InputChannels: 6, MatMulSerializationMode.ReducingDim: 4,
    MatMulSerializationMode.OutputChannels: 10,
}  # fmt: skip
WHEN_TRACED: list[tuple[Function, tuple[Tensor, ...], str]] = [
    *(
        (
            lambda m, a, b, mode=mode, n=n: poptorch.serializedMatMul(a[0], b[0], mode, n), (LEFT[None], RIGHT[None]),
            f"factor {n} does not divide the dimension of {mode.name}",
        )
        for mode, length in LENGTH_OF.items()
        for n in (length + 1, 0, -1)
    ),
    (empty_multi_conv, (IMAGE,), "Unexpected end_multi_conv"),
    (nested_multi_conv, (IMAGE,), r"Nested poptorch\.MultiConv"),
    (three_proportions, (IMAGE,), "3 values of available_memory_proportion were set for 2 convolutions"),
    (nested_loop, (X,), r"inside another poptorch\.for_loop\(\)"),
    (loop_that_writes, (X,), r"poptorch\.for_loop\(\): the body changes a tensor from outside"),
    *(
        (lambda m, x, body=body: poptorch.for_loop(2, body, [x]), (X,), words)
        for body, words in (
            (lambda t: (t, t), "takes 1 tensors and returned 2"),
            (lambda t: t.reshape(4, 6), "must match it"),
            (lambda t: t.half(), "must match it"),
        )
    ),
    *(
        (lambda m, x, n=n: poptorch.for_loop(n, lambda t: t, [x]), (X,), "count must be an int")
        for n in (2.0, "2", None, -1)
    ),
    (branch_that_writes, (X,), r"poptorch\.cond\(\): the body changes a tensor from outside"),
    *(
        (lambda m, x, a=a, b=b: poptorch.cond(positive(x), a, [x], b, [x]), (X,), words)
        for a, b, words in (
            (lambda t: t.sum(), lambda t: t.sum(), "no dimension"),
            (lambda t: (t, t), lambda t: t, "then_body returned 2 tensors, else_body 1"),
            (lambda t: t[:1], lambda t: t, "same type and number of elements"),
            (lambda t: t.half(), lambda t: t, "same type and number of elements"),
        )
    ),
    *(
        (lambda m, x, c=c: poptorch.cond(c, lambda: x, [], lambda: x, []), (X,), "a bool tensor of one element")
        for c in (True, torch.tensor([1.0, 0.0]), torch.tensor([True, False]))
    ),
    *(
        (lambda m, x, at, n=n, step=step: poptorch.dynamic_slice(x, 1, at, n, step), (ROWS, START), words)
        for n, step, words in (
            (0, 1, "of a slice must be different"), (-2, 1, "must not be negative"),
            (2, 0, "step of a slice must be at least 1"), (2, -1, "step of a slice must be at least 1"),
            (4, 1, "must be a factor of the slicing dimension"),
        )
    ),
    *(
        (lambda m, x, at, n=n: poptorch.dynamic_update(x, x, 1, at, n), (ROWS, START), words)
        for n, words in ((0, "must be different"), (-1, "must not be negative"))
    ),
    (cpu(lambda x: INNER(x), "outer"), (X,), "'inner' is called inside the op 'outer'"),
    *(
        (cpu(lambda x, r=r: r), (X,), "must return a tensor or a sequence of tensors")
        for r in (None, 1.0, [], [1.0])
    ),
    (lambda m, x: INNER(x, 2), (X,), "argument 1 of the op 'inner' must be a tensor"),
    (lambda m, x: x + INNER(torch.LongTensor([1])), (X,), "all its operands are tensors that forward made on the host"),
    *(
        (fickle(later), (X,), rf"poptorch.CPU: the op 'fickle' .*{words}")
        for later, words in (
            (torch.zeros(5, 4), r"return torch.float32 \[6, 4\] as its result 0; it returned torch.float32 \[5, 4\]"),
            (torch.zeros(6, 4, dtype=torch.int32), "it returned torch.int32"),
            ((torch.zeros(6, 4),) * 2, "must return 1 tensors; it returned 2"),
            (None, "must return a tensor or a list of tensors"),
        )
    ),
    *(
        (lambda m, x, f=f, mode=mode: f(x, mode), (X,), r"with poptorch\.PipelinedExecution.*ShardedExecution")
        for f in OVERLAPS
        for mode in (OverlapMode.OverlapAccumulationLoop, OverlapMode.OverlapDeviceIterationLoop)
    ),
]  # fmt: skip


def of_everything(m: Any, x: Tensor) -> Any:
    with MultiConv():
        y = m.conv_a(x)
    return cpu(lambda t: t)(m, poptorch.for_loop(2, lambda t: t + 1, [y])[0])


@pytest.mark.parametrize(("forward", "inputs", "words"), WHEN_TRACED)
def test_when_traced_and_the_next_compilation_is_clean(forward: Function, inputs: Any, words: str) -> None:
    with pytest.raises(Error, match=words):
        on_device(forward)(*inputs)
    clean = on_device(of_everything)
    torch.testing.assert_close(clean(IMAGE), clean.model.conv_a(IMAGE) + 2)
    assert not poptorch.isRunningOnIpu()


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (loss(lambda x: poptorch.for_loop(2, lambda t: t, [x])[0]), r"poptorch\.for_loop\(\) is only supported in inf"),
        (
            loss(lambda x: poptorch.cond(positive(x), lambda t: t, [x], lambda t: t, [x])[0]),
            r"poptorch\.cond\(\) is only supported in inference",
        ),
        (
            loss(lambda x: poptorch.dynamic_slice(x, 1, START, 4, 1)),
            r"poptorch\.dynamic_slice\(\) is only supported in",
        ),
        (loss(lambda x: poptorch.dynamic_update(x, x, 1, START, 4)), r"poptorch\.dynamic_update\(\) is only supported"),
        (loss(INNER), r"poptorch\.CPU is only supported in inference.*use torch functions"),
    ],
)
def test_in_a_training_model(forward: Function, words: str) -> None:
    with pytest.raises(Error, match=words):
        in_training(forward)(X)


def sharded(io_tiles: int = 32) -> poptorch.Options:
    options = quiet_options().setExecutionStrategy(poptorch.ShardedExecution())
    if io_tiles:
        options.TensorLocations.numIOTiles(io_tiles)
    return options


def twice(m: Any, x: Tensor, mode: OverlapMode) -> Any:
    y = poptorch.set_overlap_for_output(m.linear(x), mode)
    return y, y


def unused(m: Any, x: Tensor, mode: OverlapMode) -> Any:
    poptorch.set_overlap_for_output(x * 2, mode)
    return m.linear(x)


NO_INPUT, ONLY_OP = "not a tensor input to the model", "must be the only op applied to an input"
NO_OUTPUT = "not a tensor output to the model"


@pytest.mark.parametrize("mode", [OverlapMode.NoOverlap, OverlapMode.OverlapDeviceIterationLoop])
@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda m, x, mode: poptorch.set_overlap_for_input(x + 1, mode), NO_INPUT),
        (lambda m, x, mode: poptorch.set_overlap_for_input(m.linear.weight, mode), NO_INPUT),
        (lambda m, x, mode: poptorch.set_overlap_for_input(torch.zeros(2), mode), NO_INPUT),
        (lambda m, x, mode: x * 2 + poptorch.set_overlap_for_input(x, mode), ONLY_OP),
        (lambda m, x, mode: poptorch.set_overlap_for_input(x, mode) + x, ONLY_OP),
        (lambda m, x, mode: (poptorch.set_overlap_for_input(x, mode) * 2, x), ONLY_OP),
        (
            lambda m, x, mode: (
                poptorch.set_overlap_for_input(x, mode) + poptorch.set_overlap_for_input(x, OverlapMode.NoOverlap)
            ),
            ONLY_OP,
        ),
        (lambda m, x, mode: poptorch.set_overlap_for_output(m.linear(x), mode) * 2, NO_OUTPUT),
        (unused, NO_OUTPUT),
        (lambda m, x, mode: x + len(poptorch.set_overlap_for_output([torch.Tensor()], mode)), NO_OUTPUT),
        (twice, "returned twice"),
    ],
)
def test_marks_of_transfers(forward: Function, words: str, mode: OverlapMode) -> None:
    with pytest.raises(Error, match=words):
        on_device(lambda m, x: forward(m, x, mode), sharded())(X)


@pytest.mark.parametrize("function", OVERLAPS)
def test_options_of_a_program_with_overlap(function: Function) -> None:
    mode = OverlapMode.OverlapAccumulationLoop
    forward = lambda m, x: function(m.linear(x) if function is OVERLAPS[1] else x, mode)  # noqa: E731
    with pytest.raises(Error, match=r"No IO tiles allocated.*numIOTiles\(32\)"):
        on_device(forward, sharded(0))(X)
    for output in (poptorch.OutputMode.Final, poptorch.OutputMode.EveryN):
        with pytest.raises(Error, match=rf"Unsupported output mode {output.name}.*OutputMode\.All"):
            on_device(forward, sharded().outputMode(output, 1))(X)
    assert on_device(forward, sharded().outputMode(poptorch.OutputMode.Sum))(X).shape == (6, 4)


@pytest.mark.parametrize("raised", [KeyError("mine"), LookupError("mine")])
@pytest.mark.parametrize("where", [MultiConv, lambda: Attribute(a={"b": "c"}), lambda: NameScope("a"), None])
def test_an_error_of_the_programs_own_comes_out_as_it_is(raised: Exception, where: Any) -> None:
    def fails(x: Tensor) -> Tensor:
        raise raised

    def forward(m: Any, x: Tensor) -> Any:
        if where is None:
            return poptorch.CPU(fails, "op")(m.linear(x))
        with where():
            return fails(x)

    with pytest.raises(type(raised), match="mine"):
        on_device(forward)(X)
    assert not poptorch.isRunningOnIpu()
    assert not poptorch.poptorch_core.isCompilingWithDispatcher()
