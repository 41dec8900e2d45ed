"""A program's own operations: `custom_op`, `poptorch.CPU`, and where code runs (execution reference, 10 and 15.1)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from executor_support import FunctionModel, Module, in_training, on_device, quiet, training
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch
from ipu_model import custom_ops
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import info_of
from ipu_model.custom_ops import CustomOp, register
from ipu_model.predict.costs import costs_of
from poptorch.ops.python_ops import popart_attributes

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
DOMAIN = "test.ops"


def cube(x: Tensor, *, scale: float = 1.0) -> Tensor:
    return scale * x**3


def split(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two differentiable results, one of which does not depend on `y`, and an integer one."""
    return x * y, x.sum(1), y.argmax(1)


def tanh_gradient(inputs: Any, outputs: Any, gradients: Any, attributes: Any) -> list[Tensor | None]:
    """`slope` times the true gradient for the first input, and none for the second."""
    return [attributes["slope"] * gradients[0] * (1 - outputs[0] ** 2), None]


class FastSigmoid(torch.autograd.Function):
    """snntorch's: a step forward, and backward the slope of x / (1 + slope |x|)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float = 25.0) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return (x > 0).float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient / (ctx.slope * x.abs() + 1) ** 2, None


def slope_of(inputs: Any, outputs: Any, gradients: Any, attributes: Any) -> Tensor:
    return gradients[0] / (attributes["slope"] * inputs[0].abs() + 1) ** 2


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_ops, "_registered", {})
    register("Cube", DOMAIN, 1, cube)
    register("Split", DOMAIN, 1, split)
    register("Tanh", DOMAIN, 1, lambda x, y, slope: x.tanh(), tanh_gradient)
    register("Square", DOMAIN, 1, lambda x, mean: (mean.lerp_(x.mean(), 0.5), x.mul_(1) * x)[1])
    register("Spike", DOMAIN, 1, FastSigmoid)
    register("Spike", DOMAIN, 2, lambda x, slope: (x > 0).float(), slope_of)
    register("AutogradProxy", DOMAIN, 1, lambda value, proxy: value, lambda i, o, gradients, a: [None, gradients[0]])


def call(name: str, inputs: list[Tensor], examples: list[Tensor], version: int = 1, **attributes: Any) -> list[Tensor]:
    return poptorch.custom_op(inputs, name, DOMAIN, version, examples, attributes or None)


def on_input(name: str, **settings: Any) -> poptorch.PoplarExecutor:
    return on_device(lambda m, x: call(name, [x], [x], **settings))


def in_two_ops(y: Tensor, x: Tensor) -> Tensor:
    product, total, _ = call("Split", [y, x], [y, y[:, 0], y[:, 0].int()])
    return call("Cube", [product], [product])[0].float().sum() + total.float().sum() + y.float().sum()


def spike(version: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda y, x: call("Spike", [y], [y], version, slope=3.0)[0] * x


def surrogate(y: Tensor, x: Tensor) -> Tensor:
    return FastSigmoid.apply(y, 3.0) * x  # type: ignore[no-any-return]


def proxied(y: Tensor, x: Tensor) -> Tensor:
    (rounded,) = call("AutogradProxy", [y.round(), y], [y])
    return rounded * rounded


# Functions of a layer's output and input on the device, and what plain PyTorch differentiates instead.
GRADIENTS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "of forward, without a backward": (in_two_ops, lambda y, x: ((y * x) ** 3).sum() + 2 * y.sum()),
    "its own, and none for an input": (
        lambda y, x: call("Tanh", [y, 3 * y], [y], slope=5.0)[0], lambda y, x: 5 * y.tanh()),
    "of a function that keeps a mean": (
        lambda y, x: call("Square", [y, torch.zeros(1)], [y])[0], lambda y, x: y.square()),
    "a surrogate": (spike(2), surrogate),
    "of a torch.autograd.Function": (spike(1), surrogate),
    "to the proxy, as with autograd_proxy": (proxied, lambda y, x: 2 * y.round().detach() * y),
}  # fmt: skip


class TestCustomOps:
    @pytest.mark.parametrize(("dtype", "loose"), [(torch.float32, {}), (torch.float16, {"atol": 0.05, "rtol": 0.02})])
    @pytest.mark.parametrize("name", GRADIENTS)
    def test_gradients(self, name: str, dtype: torch.dtype, loose: dict[str, float]) -> None:
        """The weight moves by its gradient."""
        function, plain = GRADIENTS[name]
        model = FunctionModel(lambda m, x: poptorch.identity_loss(function(m.linear(x), x).float(), "sum"))
        linear = copy.deepcopy(model.linear)
        plain(linear(X), X).sum().backward()
        executor = training(model.to(dtype), lr=1.0)
        executor(X.to(dtype))
        moved = linear.weight.detach() - model.linear.weight.detach().float()
        torch.testing.assert_close(moved, linear.weight.grad, **loose)

    def test_results_are_a_list_of_the_shapes_and_types_of_the_examples(self) -> None:
        results = on_device(lambda m, x, y: call("Split", [x, y], [x, x[:, 0], x[:, 0].int()]))(X, 2 * X)
        assert isinstance(results, list)
        product, total, places = results
        torch.testing.assert_close(product, 2 * X * X)
        torch.testing.assert_close(total, X.sum(1))
        assert torch.equal(places, X.argmax(1).int())
        torch.testing.assert_close(on_input("Cube", scale=2.0)(X)[0], 2 * X**3)

    def test_half_precision_is_computed_in_float32_and_rounded_once(self) -> None:
        seen = []
        register("Third", DOMAIN, 1, lambda x: seen.append(x.dtype) or x / 3)
        assert torch.equal(on_input("Third")(X.half())[0], (X.half().float() / 3).half())
        assert seen == [torch.float32]

    def test_attributes_reach_the_function_as_popart_stores_them(self) -> None:
        seen: list[dict[str, Any]] = []
        register("Look", DOMAIN, 1, lambda x, **attributes: seen.append(attributes) or x)
        on_input("Look", n=True, f=0.1, s="a", list=(1.5, 2.5))(X)
        assert seen == [{"n": 1, "f": torch.tensor(0.1).item(), "s": "a", "list": [1.5, 2.5]}]

    @given(
        st.dictionaries(
            st.text(st.characters(codec="ascii")),
            st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1),
        )
    )
    def test_attributes_that_fit_are_kept_as_they_are_with_their_types(self, attributes: dict[str, float]) -> None:
        found = popart_attributes(attributes)
        assert found == attributes
        assert [type(value) for value in found.values()] == [type(value) for value in attributes.values()]

    def test_on_the_cpu_the_results_are_zeros_like_the_examples(self) -> None:
        examples = [torch.ones(2, requires_grad=True), torch.ones(3, dtype=torch.int32)]
        for result, example in zip(call("Unknown", [X], examples), examples, strict=True):
            assert torch.equal(result, torch.zeros_like(example))
            assert (result.dtype, result.requires_grad) == (example.dtype, example.requires_grad)

    def test_it_belongs_to_its_block_forward_and_backward(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with poptorch.Block("first", ipu_id=0):
                y = model.linear(x)
            with poptorch.Block("second", ipu_id=1):
                return poptorch.identity_loss(call("Cube", [y], [y])[0], "sum")

        executor = in_training(forward, quiet(setExecutionStrategy=poptorch.ShardedExecution()))
        executor.compile(X)
        assert executor._compiled is not None
        nodes = [node for node in executor._compiled.graph.ops.nodes if "custom_op" in str(node.target)]
        ops = {str(node.target): info_of(node).placement.ipu for node in nodes}
        assert ops == {"ipu_model.custom_op.default": 1, "ipu_model.custom_op_backward.default": 1}

    def test_an_op_without_arithmetic_is_refused_when_compiled_with_the_remedy(self) -> None:
        with pytest.raises(poptorch.Error) as refusal:
            on_input("Cube", version=7).compile(X)
        for fragment in ("'Cube'", f"'{DOMAIN}', version 7", "ipu_model.custom_ops.register", f"{DOMAIN}.Cube:1"):
            assert fragment in refusal.value.message

    def test_a_later_registration_counts_for_models_compiled_after_it(self) -> None:
        executor = on_input("Cube")
        executor.compile(X)
        register("Cube", DOMAIN, 1, lambda x: x + 1)
        torch.testing.assert_close(executor(X)[0], X**3)
        assert torch.equal(on_input("Cube")(X)[0], X + 1)

    def test_only_the_op_itself_is_forgotten(self) -> None:
        custom_ops.unregister(CustomOp("Cube", DOMAIN, 1, cube))  # equal, but not the one registered
        assert custom_ops.find("Cube", DOMAIN, 1).forward is cube
        custom_ops.unregister(custom_ops.find("Cube", DOMAIN, 1))
        with pytest.raises(poptorch.Error, match="has no CPU arithmetic"):
            custom_ops.find("Cube", DOMAIN, 1)


def average(teacher: Tensor, student: Tensor) -> Tensor:
    return teacher.mul_(0.5).add_(student, alpha=0.5)


def with_numpy(teacher: Tensor, student: Tensor) -> Tensor:
    teacher.numpy()[...] = (teacher.numpy() + student.numpy()) / 2
    return student


WAYS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "in place": average,
    "through data": lambda t, s: (t.data.lerp_(s, 0.5), s)[1],
    "into it": lambda t, s: torch.add(t / 2, s / 2, out=t),
    "with numpy": with_numpy,
}
IN_HALVES = quiet(accumulation=2, deviceIterations=2)


def keep(model: Any, *inputs: Tensor) -> None:
    call("Average", [*inputs], [inputs[0]])


def learner(update: Callable[..., Any], teacher: Tensor | None = None, trainable: bool = False) -> Any:
    """Return a student of 1 that learns nothing, and a teacher that follows it by half of the distance in each step."""

    def forward(m: Any, x: Tensor) -> Any:
        with torch.no_grad():
            update(m, m.teacher, m.student)
        return m.teacher + 0, poptorch.identity_loss((x * m.student).sum(), "sum")

    student = nn.Parameter(torch.ones(2))
    if teacher is None:
        return Module(forward, student=student, teacher=nn.Parameter(torch.zeros(2), requires_grad=trainable))
    return Module(forward, {"teacher": teacher}, student=student)


def learned(model: Any, options: poptorch.Options | None = None, rows: int = 1) -> list[float]:
    executor = training(model, options or quiet(), lr=0.0)
    for _ in range(3):
        executor(torch.ones(rows, 2))
    found: list[float] = model.teacher.tolist()
    return found


class TestEffects:
    """A moving average after n steps is 1 - 0.5 ** n, whoever computes it; DINO's teacher is one."""

    @pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
    def test_what_a_function_changes_in_place_lasts_though_nobody_uses_its_results(self, way: Any) -> None:
        register("Average", DOMAIN, 1, way)
        assert learned(learner(keep)) == [0.875] * 2

    @pytest.mark.parametrize("kind", ["parameter", "trained", "buffer", "half", "view", "twice", "plain op"])
    @pytest.mark.parametrize(("options", "rows", "steps"), [
        (quiet(), 1, 3), (IN_HALVES, 4, 12), (quiet(replicationFactor=2, broadcastBuffers=False), 2, 3)
    ], ids=["once", "in every micro-batch", "on every replica"])  # fmt: skip
    def test_it_reaches_what_holds_the_tensor(self, kind: str, options: Any, rows: int, steps: int) -> None:
        register("Average", DOMAIN, 1, lambda teacher, student, *same: average(teacher, student))
        teachers = {"buffer": torch.zeros(2), "half": torch.zeros(2).half(), "view": torch.zeros(2, 2)}
        updates: dict[str, Callable[..., Any]] = {
            "view": lambda m, t, s: keep(m, t[1].view(1, 2), s.view(1, 2)),
            "half": lambda m, t, s: keep(m, t, s.half()),
            "twice": lambda m, t, s: keep(m, t, s, t),
            "plain op": lambda m, t, s: average(t, s),
        }
        model = learner(updates.get(kind, keep), teachers.get(kind), kind in ("trained", "plain op"))
        expected = [1 - 0.5**steps] * 2
        if kind == "half":
            expected = torch.tensor(expected).half().tolist()
        assert learned(model, options, rows) == ([[0, 0], expected] if kind == "view" else expected)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
    def test_an_input_is_the_callers_and_later_ops_see_the_change(self, dtype: torch.dtype) -> None:
        register("Add", DOMAIN, 1, lambda x: x.add_(1))
        before, x = torch.arange(4).to(dtype), torch.arange(4).to(dtype)
        results = on_device(lambda m, x: (x + 0, call("Add", [x], [x])[0], x * 2), quiet(deviceIterations=2))(x)
        assert [r.tolist() for r in (*results, x)] == [
            t.tolist() for t in (before, before + 1, (before + 1) * 2, before + 1)
        ]

    def test_values_that_stay_are_not_touched_infinities_and_large_numbers_included(self) -> None:
        register("Look", DOMAIN, 1, lambda x: x * 1)
        for x in (torch.tensor([torch.inf, torch.nan, 1.0]).half(), torch.tensor([2**40, 3]), X[:1].expand(3, 4)):
            before = x.clone()
            on_device(lambda m, x: call("Look", [x], [x])[0] * 0)(x)
            assert x.tolist().__repr__() == before.tolist().__repr__()

    def test_a_tensor_that_is_no_buffer_starts_anew_in_each_micro_batch(self) -> None:
        register("Add", DOMAIN, 1, lambda x: x.add_(1))
        executor = on_device(
            lambda m, x: (call("Add", [m.counter], [m.counter]), m.counter + x)[1], quiet(deviceIterations=2)
        )
        executor.model.counter = torch.zeros(1)
        assert executor(torch.zeros(2)).tolist() == executor(torch.zeros(2)).tolist() == [1, 1]
        assert executor.model.counter.item() == 0

    @pytest.mark.parametrize(("forward", "words"), [
        (lambda m, x: call("Add", [m.count], [x])[0], r"the buffer 'count'.*floating"),
        (lambda m, x: call("Add", [x[:1].expand(6, 4)], [x])[0], "an expanded tensor.*clone"),
        (lambda m, x: call("Resize", [x], [x])[0], "and its shape with it.*fixed when the model is compiled"),
        (lambda m, x: poptorch.cond(x.sum() > 0, lambda: call("Add", [x], [x]), [], lambda: [x], []),
         r"a tensor from outside a branch of poptorch\.cond"),
    ])  # fmt: skip
    def test_what_cannot_last_is_refused(self, forward: Any, words: str) -> None:
        register("Add", DOMAIN, 1, lambda x: x.add_(1))
        register("Resize", DOMAIN, 1, lambda x: x.resize_(5).clone())
        executor = on_device(forward)
        executor.model.register_buffer("count", torch.zeros(6, 4, dtype=torch.int32))
        with pytest.raises(poptorch.Error, match=rf"custom op test.ops.\w+ changes its input 0 in place, {words}"):
            executor(X)

    def test_a_branch_may_change_what_it_was_given(self) -> None:
        register("Add", DOMAIN, 1, lambda x: x.add_(1))
        branch = on_device(
            lambda m, x: poptorch.cond(x.sum() > 0, lambda x: call("Add", [x], [x]), [x], lambda: [x], [])
        )
        x = torch.ones(2)
        assert (branch(x)[0].tolist(), x.tolist()) == ([2, 2], [1, 1])


REPLICAS = 4
COLLECTIVES: dict[str, Callable[[list[Tensor]], list[Any]]] = {
    "all-gather": lambda xs: [torch.stack(xs)] * len(xs),
    "all-reduce": lambda xs: [torch.stack(xs).sum(0)] * len(xs),
    "reduce-scatter": lambda xs: list(torch.stack(xs).sum(0).chunk(len(xs))),
    "all-to-all": lambda xs: [torch.stack([x[replica] for x in xs]) for replica in range(len(xs))],
    "a shift in place": lambda xs: [x.copy_(y) for x, y in zip(xs, [xs[-1].clone(), *(x.clone() for x in xs[:-1])])],
}


def shared(forward: Callable[..., Any], **settings: Any) -> poptorch.PoplarExecutor:
    return in_training(forward, quiet(replicationFactor=REPLICAS, outputMode=poptorch.OutputMode.All, **settings))


class TestCrossReplicaOps:
    @pytest.mark.parametrize("name", COLLECTIVES)
    def test_results_and_gradients_are_those_of_all_replicas_in_plain_pytorch(self, name: str) -> None:
        register("Joint", DOMAIN, 1, COLLECTIVES[name], cross_replica=True)
        x = torch.randn(2 * REPLICAS * REPLICAS, 4, generator=torch.Generator().manual_seed(1))
        factors = torch.arange(1.0, 2 * REPLICAS + 1)
        linear = FunctionModel(None).linear
        plain = [[linear(rows) for rows in step.split(REPLICAS)] for step in x.split(REPLICAS * REPLICAS)]
        joint = [COLLECTIVES[name]([y.clone() for y in step]) for step in plain]
        shape = joint[0][0].shape

        def forward(model: Any, x: Tensor, factor: Tensor) -> Any:
            y = model.linear(x)
            (result,) = call("Joint", [y], [torch.empty(shape)])
            return result, poptorch.identity_loss((result * factor) ** 2, "sum")

        executor = shared(forward, accumulation=2, accumulationAndReplicationReductionType=poptorch.ReductionType.Sum)
        executor.setOptimizer(torch.optim.SGD(executor.model.parameters(), lr=1.0))
        results, _ = executor(x, factors)
        torch.testing.assert_close(results.view(2 * REPLICAS, *shape), torch.stack([y for step in joint for y in step]))
        loss = sum((y * factor) ** 2 for y, factor in zip((y for step in joint for y in step), factors)).sum()
        (gradient,) = torch.autograd.grad(loss, [linear.weight])
        torch.testing.assert_close(linear.weight - executor.model.linear.weight.data, gradient)

    def test_a_product_of_shards_trains_as_the_whole_product_with_the_pair_of_sharded_layers(self) -> None:
        """Forward y is the sum of x_r W_r over replicas; backward each replica goes on with its own gradient."""
        backward = lambda inputs, outputs, gradients, attributes: list(zip(*gradients))  # noqa: E731
        register("Sum", DOMAIN, 1, lambda xs: [sum(xs)] * len(xs), backward, cross_replica=True)
        whole, x, target = nn.Linear(8, 3, bias=False), torch.randn(5, 8), torch.randn(5, 3)

        def forward(model: Any, x: Tensor, target: Tensor) -> Tensor:
            (y,) = call("Sum", [x @ model.weight], [target])
            return poptorch.identity_loss((y - target).square(), "sum")

        model = Module(forward, weight=nn.Parameter(whole.weight.detach().T.reshape(4, 2, 3).clone()))
        executor = training(model, quiet(replicationFactor=4), lr=0.1)
        executor.weight.replicaGrouping(
            poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup
        )
        executor(torch.cat(x.chunk(4, dim=1)), target.repeat(4, 1))
        (whole(x) - target).square().sum().backward()
        torch.testing.assert_close(model.weight.data.reshape(8, 3).T, whole.weight - 0.1 * whole.weight.grad)

    def test_replicas_draw_the_same_numbers_as_without_it(self) -> None:
        register("Mean", DOMAIN, 1, lambda xs: [sum(xs) / len(xs)] * len(xs), cross_replica=True)
        x = torch.ones(REPLICAS * 6)

        def drawn(joint: bool) -> Tensor:
            def forward(model: Any, x: Tensor) -> Any:
                first = nn.functional.dropout(x + 0 * model.linear.weight.sum())
                mean = call("Mean", [first], [first])[0] if joint else first
                return first, nn.functional.dropout(x), poptorch.identity_loss(mean, "sum")

            return torch.stack(shared(forward, randomSeed=3)(x)[:2])

        assert torch.equal(drawn(joint=True), drawn(joint=False))

    def test_a_function_draws_from_the_stream_of_the_first_replica(self) -> None:
        register("Noise", DOMAIN, 1, lambda xs: [torch.rand_like(xs[0])] * len(xs), cross_replica=True)
        forward = lambda m, x: (noise := call("Noise", [m.linear(x)], [x])[0], poptorch.identity_loss(noise, "sum"))  # noqa: E731
        first, second = (shared(forward, randomSeed=3) for _ in range(2))
        noise, host = first(X[:4])[0], torch.get_rng_state()
        assert torch.equal(second(X[:4])[0], noise)
        assert not torch.equal(first(X[:4])[0], noise)
        assert torch.equal(torch.get_rng_state(), host)
        assert torch.equal(noise, noise[:1].expand(4, 4))

    def test_mistakes_name_the_op_or_the_line(self) -> None:
        register("Few", DOMAIN, 1, lambda xs: xs[:1], cross_replica=True)
        forward = lambda m, x: poptorch.identity_loss(call("Few", [m.linear(x)], [x])[0], "sum")  # noqa: E731
        with pytest.raises(poptorch.Error, match=r"test\.ops\.Few: a cross-replica .* of 4 replicas; it returned 1\."):
            shared(forward)(X[:4])
        with pytest.raises(poptorch.Error, match=r"sees all replicas, with several processes.*Run all replicas in one"):
            shared(forward, configureProcessId=(0, 2))(X[:4])
        with pytest.raises(poptorch.Error, match=r"index.* \(aten\.index.*line \d+ of"):
            shared(lambda m, x, i: (m.linear(x)[i], forward(m, x)))(X[:4], torch.tensor([7] * 4))


class WithHostLayer(nn.Linear):
    """A layer that calls one of its own methods, with a layer of its own, on the host."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.on_host, self.op = nn.Linear(4, 4), poptorch.CPU(self.compute, "MyOp")
        self.seen: list[Tensor] = []

    def compute(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        assert not poptorch.isRunningOnIpu()
        # Weights of the host, also while tracing: NumPy takes no others.
        return torch.from_numpy(np.sort(self.on_host(x).detach().numpy(), axis=1))

    def forward(self, x: Tensor) -> Any:
        return self.op(super().forward(x)) + 1


def host_op(function: Callable[..., Any]) -> poptorch.PoplarExecutor:
    op = poptorch.CPU(function, "op")
    return on_device(lambda m, *inputs: op(*inputs))


class TestCpuOps:
    def test_a_method_of_the_model_gets_the_present_values_in_every_micro_batch(self) -> None:
        model = WithHostLayer().eval()
        executor = poptorch.inferenceModel(model, quiet(deviceIterations=3))
        executor.compile(X)
        assert [t.tolist() for t in model.seen] == [[[0.0] * 4] * 2]  # once while tracing, on zeros
        model.seen.clear()
        found = executor(X)
        torch.testing.assert_close(torch.cat(model.seen), nn.functional.linear(X, model.weight, model.bias))
        torch.testing.assert_close(found, model(X))

    def test_one_result_comes_as_a_tensor_and_several_as_a_list(self) -> None:
        parts = host_op(lambda x, y: (x + y, x.argmax(1)))(X, 2 * X)
        assert isinstance(parts, list)
        assert torch.equal(parts[0], X + 2 * X)
        assert torch.equal(parts[1], X.argmax(1).int())

    def test_ops_alternate_but_of_two_with_one_id_the_first_is_called(self) -> None:
        double, add = poptorch.CPU(lambda x: 2 * x, "double"), poptorch.CPU(lambda x: x + 1, "add")
        assert torch.equal(on_device(lambda m, x: double(add(double(add(x)))))(X), 2 * (2 * (X + 1) + 1))
        first, second = poptorch.CPU(lambda x: 2 * x, "same"), poptorch.CPU(lambda x: x + 1, "same")
        assert torch.equal(on_device(lambda m, x: second(first(x)))(X), 4 * X)
        assert torch.equal(on_device(lambda m, x: second(x))(X), X + 1)  # another compilation

    def test_what_it_changes_or_keeps_is_its_own(self) -> None:
        kept: list[Tensor] = []
        op = poptorch.CPU(lambda x: (kept.append(x.add_(1)), x)[1], "careless")
        executor = on_device(lambda m, x: (op(x), x + 0, op(x)))
        for _ in range(2):
            first, untouched, again = executor(X)
            for tensor in kept:
                tensor.zero_()
            assert torch.equal(untouched, X)
            assert torch.equal(first, X + 1)
            assert torch.equal(again, X + 1)

    def test_it_is_called_in_every_run_even_without_operands(self) -> None:
        count = iter(range(100))
        op = poptorch.CPU(lambda: torch.full((1,), float(next(count))), "source")
        executor = on_device(lambda m, x: (op(), x), quiet(deviceIterations=2))
        executor.compile(X)
        assert next(count) == 1  # the zeroth call was the trace's
        assert executor(X)[0].tolist() == [2.0, 3.0]
        assert executor(X)[0].tolist() == [4.0, 5.0]

    def test_floating_point_buffers_are_float32(self) -> None:
        seen: list[torch.dtype] = []
        look = host_op(lambda x, n: (seen.extend((x.dtype, n.dtype)), (x.half(), n))[1])
        floats, ints = look(X.half(), torch.ones(6, dtype=torch.int32))
        assert set(seen) == {torch.float32, torch.int32}
        assert (floats.dtype, ints.dtype) == (torch.float32, torch.int32)

    def test_keywords_are_ignored_and_the_cpu_calls_it_directly(self) -> None:
        op = poptorch.CPU(lambda x, by=2: by * x, "op")
        assert torch.equal(op(X, by=5), 2 * X)
        assert torch.equal(on_device(lambda m, x: op(x, by=5))(X), 2 * X)

    def test_poptorchs_functions_act_inside_as_on_the_cpu(self) -> None:
        def inside(x: Tensor) -> Tensor:
            with poptorch.Block("host"):
                return poptorch.nop(torch.zeros(4) + x)

        assert torch.equal(host_op(inside)(X), X)

    def test_a_layer_runs_with_its_own_weights_also_when_they_change(self) -> None:
        layer = nn.Linear(4, 4)
        executor = host_op(layer)
        for _ in range(2):
            torch.testing.assert_close(executor(X), layer(X))
            assert not any(parameter.requires_grad for parameter in layer.parameters())
            layer.weight.zero_()


def costs(executor: poptorch.PoplarExecutor) -> Any:
    executor.compile(X)
    assert executor._compiled is not None
    return costs_of(step_of(executor._compiled.graph))


def test_a_custom_op_costs_what_an_op_without_a_formula_costs_and_one_on_the_host_a_call() -> None:
    """What a call costs: `engine/test_op_formulas.py`."""
    (op,) = (op for op in costs(on_input("Cube")).ops if op.is_fallback)
    assert op.target == "ipu_model.custom_op.default"
    assert op.work.cycles.compute > 0
    assert op.work.cycles.exchange > 0
    on_host = costs(host_op(lambda x: x))
    assert [(op.work.family, op.is_fallback) for op in on_host.ops] == [("host call", False)]
