"""`custom_op` (execution reference, section 10.1) and the registration of its CPU arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from function_models import FunctionModel, in_training, on_device, quiet_options
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

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
    """A straight-through gradient for the second input's sake: none."""
    return [attributes["slope"] * gradients[0] * (1 - outputs[0] ** 2), None]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_ops, "_registered", {})
    register("Cube", DOMAIN, 1, cube)
    register("Split", DOMAIN, 1, split)
    register("Tanh", DOMAIN, 2, lambda x, y, slope: x.tanh(), tanh_gradient)


def call(name: str, inputs: list[Tensor], examples: list[Tensor], version: int = 1, **attributes: Any) -> list[Tensor]:
    return poptorch.custom_op(inputs, name, DOMAIN, version, examples, attributes or None)


def weight_gradient(forward: Any, x: Tensor, *, half: bool = False) -> Tensor:
    """The gradient of the linear layer's weights, from one step of plain descent."""
    model = FunctionModel(forward)
    model = model.half() if half else model
    before = model.linear.weight.detach().float().clone()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    executor = poptorch.trainingModel(model, quiet_options(), optimizer=optimizer)
    executor(x)
    executor.copyWeightsToHost()
    return before - model.linear.weight.detach().float()


class TestInference:
    def test_the_results_are_a_list_of_what_the_function_computes(self) -> None:
        def forward(model: Any, x: Tensor) -> Any:
            results = call("Cube", [x], [x], scale=2.0)
            assert isinstance(results, list)
            return results

        torch.testing.assert_close(on_device(forward)(X)[0], 2 * X**3)

    def test_several_results_take_the_shapes_and_types_of_the_examples(self) -> None:
        def forward(model: Any, x: Tensor, y: Tensor) -> Any:
            return call("Split", [x, y], [x, x[:, 0], x[:, 0].int()])

        product, total, places = on_device(forward)(X, 2 * X)
        torch.testing.assert_close(product, 2 * X * X)
        torch.testing.assert_close(total, X.sum(1))
        assert torch.equal(places, X.argmax(1).int())

    def test_half_precision_is_computed_in_float32_and_rounded_once(self) -> None:
        seen = []
        register("Third", DOMAIN, 1, lambda x: seen.append(x.dtype) or x / 3)
        assert torch.equal(on_device(lambda m, x: call("Third", [x], [x]))(X.half())[0], (X.half().float() / 3).half())
        assert seen == [torch.float32]

    def test_attributes_reach_the_function_as_popart_stores_them(self) -> None:
        seen: list[dict[str, Any]] = []
        given_values = {"n": True, "f": 0.1, "s": "a", "list": (1.5, 2.5)}
        register("Look", DOMAIN, 1, lambda x, **attributes: seen.append(attributes) or x)
        on_device(lambda m, x: call("Look", [x], [x], **given_values))(X)
        assert seen == [{"n": 1, "f": torch.tensor(0.1).item(), "s": "a", "list": [1.5, 2.5]}]

    def test_on_the_cpu_the_results_are_zeros_like_the_examples(self) -> None:
        examples = [torch.ones(2, requires_grad=True), torch.ones(3, dtype=torch.int32)]
        found = call("Unknown", [X], examples)
        assert [(t.shape, t.dtype, t.requires_grad) for t in found] == [
            (t.shape, t.dtype, t.requires_grad) for t in examples
        ]
        assert not any(t.any() for t in found)


class TestTraining:
    @pytest.mark.parametrize("half", [False, True], ids=["float", "half"])
    def test_without_a_backward_pytorch_differentiates_forward(self, half: bool) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            y = model.linear(x)
            product, total, _ = call("Split", [y, x], [y, y[:, 0], y[:, 0].int()])
            (cubed,) = call("Cube", [product], [product])
            return poptorch.identity_loss(cubed.float().sum() + total.float().sum() + y.float().sum(), "sum")

        linear = FunctionModel(forward).linear
        y = linear(X)
        ((y * X) ** 3).sum().add(2 * y.sum()).backward()
        found = weight_gradient(forward, X.half() if half else X, half=half)
        torch.testing.assert_close(found, linear.weight.grad, **({"atol": 0.05, "rtol": 0.02} if half else {}))

    def test_its_own_backward_is_used_and_none_is_a_gradient_of_zero(self) -> None:
        """The backward says five times the true gradient for x, and none for y."""

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

        executor = in_training(forward, quiet_options().setExecutionStrategy(poptorch.ShardedExecution()))
        executor.compile(X)
        assert executor._compiled is not None
        nodes = [node for node in executor._compiled.graph.ops.nodes if "custom_op" in str(node.target)]
        ops = {str(node.target): info_of(node).placement.ipu for node in nodes}
        assert ops == {"ipu_model.custom_op.default": 1, "ipu_model.custom_op_backward.default": 1}


class TestRegistration:
    def test_an_op_without_arithmetic_is_refused_when_compiled_with_the_remedy(self) -> None:
        with pytest.raises(poptorch.Error) as refusal:
            on_device(lambda m, x: call("Cube", [x], [x], version=7)).compile(X)
        for fragment in ("'Cube'", f"'{DOMAIN}', version 7", "ipu_model.custom_ops.register", f"{DOMAIN}.Cube:1"):
            assert fragment in refusal.value.message

    def test_a_later_registration_counts_for_models_compiled_after_it(self) -> None:
        executor = on_device(lambda m, x: call("Cube", [x], [x]))
        executor.compile(X)
        register("Cube", DOMAIN, 1, lambda x: x + 1)
        torch.testing.assert_close(executor(X)[0], X**3)
        assert torch.equal(on_device(lambda m, x: call("Cube", [x], [x]))(X)[0], X + 1)

    def test_only_the_op_itself_is_forgotten(self) -> None:
        custom_ops.unregister(CustomOp("Cube", DOMAIN, 1, cube))  # equal, but not the one registered
        assert custom_ops.find("Cube", DOMAIN, 1).forward is cube
        custom_ops.unregister(custom_ops.find("Cube", DOMAIN, 1))
        with pytest.raises(poptorch.Error, match="has no CPU arithmetic"):
            custom_ops.find("Cube", DOMAIN, 1)


@given(st.dictionaries(st.text(st.characters(codec="ascii")), st.floats(width=32, allow_nan=False, allow_infinity=False)
                       | st.integers(-(2**63), 2**63 - 1)))  # fmt: skip
def test_values_that_fit_are_kept_as_they_are_with_their_types(attributes: dict[str, float]) -> None:
    found = popart_attributes(attributes)
    assert found == attributes
    assert [type(value) for value in found.values()] == [type(value) for value in attributes.values()]


def test_in_the_performance_model_it_is_an_op_without_a_formula() -> None:
    executor = on_device(lambda m, x: call("Cube", [x], [x]))
    executor.compile(X)
    assert executor._compiled is not None
    (op,) = costs_of(step_of(executor._compiled.graph)).fallbacks
    assert op.target == "ipu_model.custom_op.default"
    assert op.work.cycles.compute > 0
    assert op.work.cycles.exchange > 0
