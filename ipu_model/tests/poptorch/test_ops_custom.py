"""A program's own operations: `custom_op`, `poptorch.CPU`, and where code runs (execution reference, 10 and 15.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from executor_support import quiet, training
from function_models import FunctionModel, in_training, on_device
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


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_ops, "_registered", {})
    register("Cube", DOMAIN, 1, cube)
    register("Split", DOMAIN, 1, split)
    register("Tanh", DOMAIN, 2, lambda x, y, slope: x.tanh(), tanh_gradient)


def call(name: str, inputs: list[Tensor], examples: list[Tensor], version: int = 1, **attributes: Any) -> list[Tensor]:
    return poptorch.custom_op(inputs, name, DOMAIN, version, examples, attributes or None)


def on_input(name: str, **settings: Any) -> poptorch.PoplarExecutor:
    return on_device(lambda m, x: call(name, [x], [x], **settings))


def weight_gradient(forward: Any, x: Tensor) -> Tensor:
    """Return the gradient of the linear layer's weights, from one step of plain descent."""
    model = FunctionModel(forward).to(x.dtype)
    before = model.linear.weight.detach().float().clone()
    executor = training(model, lr=1.0)
    executor(x)
    return before - model.linear.weight.detach().float()


class TestCustomOps:
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

    @pytest.mark.parametrize(("dtype", "loose"), [(torch.float32, {}), (torch.float16, {"atol": 0.05, "rtol": 0.02})])
    def test_without_a_backward_pytorch_differentiates_forward(self, dtype: Any, loose: dict[str, float]) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            y = model.linear(x)
            product, total, _ = call("Split", [y, x], [y, y[:, 0], y[:, 0].int()])
            (cubed,) = call("Cube", [product], [product])
            return poptorch.identity_loss(cubed.float().sum() + total.float().sum() + y.float().sum(), "sum")

        linear = FunctionModel(forward).linear
        y = linear(X)
        ((y * X) ** 3).sum().add(2 * y.sum()).backward()
        torch.testing.assert_close(weight_gradient(forward, X.to(dtype)), linear.weight.grad, **loose)

    def test_its_own_backward_is_used_and_none_is_a_gradient_of_zero(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            y = model.linear(x)
            return poptorch.identity_loss(call("Tanh", [y, 3 * y], [y], version=2, slope=5.0)[0], "sum")

        linear = FunctionModel(forward).linear
        (5 * linear(X).tanh()).sum().backward()
        torch.testing.assert_close(weight_gradient(forward, X), linear.weight.grad)

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


@pytest.mark.parametrize("wrap", [on_device, in_training])
def test_a_forward_runs_on_the_ipu_while_it_is_traced(wrap: Any) -> None:
    seen: list[bool] = []

    def forward(model: Any, x: Tensor) -> Tensor:
        seen.append(poptorch.isRunningOnIpu())
        return poptorch.identity_loss(model.linear(x), "sum")

    executor = wrap(forward)
    assert not poptorch.isRunningOnIpu()
    executor(X)
    executor(X)
    assert seen == [True]
    FunctionModel(forward)(X)
    assert seen == [True, False]
    assert not poptorch.isRunningOnIpu()


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
    (op,) = costs(on_input("Cube")).fallbacks
    assert op.target == "ipu_model.custom_op.default"
    assert op.work.cycles.compute > 0
    assert op.work.cycles.exchange > 0
    on_host = costs(host_op(lambda x: x))
    assert ([op.family for op in on_host.ops], list(on_host.fallbacks)) == (["host call"], [])
