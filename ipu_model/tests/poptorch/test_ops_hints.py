"""Hints that leave values alone (execution reference, sections 7, 8.1, 8.2 and 11)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from function_models import compiled_ops, hinted, on_device
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import poptorch
from poptorch import MatMulSerializationMode

X = torch.arange(8.0).reshape(2, 4)
ADDMM, MM, CONVOLUTION = "aten.addmm.default", "aten.mm.default", "aten.convolution.default"


class TestRecomputationCheckpoint:
    def test_one_tensor_comes_back_as_that_tensor(self) -> None:
        assert poptorch.recomputationCheckpoint(X) is X

    def test_several_tensors_come_back_as_a_tuple_in_order(self) -> None:
        first, second = poptorch.recomputationCheckpoint(X, X + 1)
        assert first is X
        assert torch.equal(second, X + 1)

    @pytest.mark.parametrize("container", [[X, X], (X, X), [X], (X,)])
    def test_a_container_keeps_its_type_also_with_one_element(self, container: Any) -> None:
        result = poptorch.recomputationCheckpoint(container)
        assert type(result) is type(container)
        assert [a is b for a, b in zip(result, container, strict=True)] == [True] * len(container)

    def test_no_argument_gives_an_empty_tuple(self) -> None:
        assert poptorch.recomputationCheckpoint() == ()

    @pytest.mark.parametrize("wrong", [(3,), (X, None), ([X, "a"],), ([[X]],), ({"x": X},)])
    def test_anything_but_tensors_is_refused(self, wrong: tuple[Any, ...]) -> None:
        with pytest.raises(ValueError, match="inputs must be tensors"):
            poptorch.recomputationCheckpoint(*wrong)

    def test_a_checkpoint_inside_a_model_is_noted_on_the_op_that_computes_it(self) -> None:
        ops = compiled_ops(lambda m, x: m.linear(poptorch.recomputationCheckpoint(torch.tanh(x))), X)
        assert hinted(ops, "recomputation_checkpoint") == {"aten.tanh.default": True}

    def test_it_works_from_a_forward_hook_without_changing_results(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            return model.linear(x)

        plain = on_device(forward)
        with_hook = on_device(forward)
        with_hook.model.linear.register_forward_hook(
            lambda module, inputs, output: poptorch.recomputationCheckpoint(output)
        )
        assert torch.equal(with_hook(X), plain(X))


class TestNop:
    def test_on_the_cpu_it_returns_its_argument(self) -> None:
        assert poptorch.nop(X) is X

    def test_in_a_model_it_is_an_op_of_its_own_that_survives(self) -> None:
        ops = compiled_ops(lambda m, x: poptorch.nop(x) + 1, X)
        assert [str(node.target) for node in ops] == ["aten.clone.default", "aten.add.Tensor"]

    @pytest.mark.parametrize("wrong", [1, [X], None])
    def test_anything_but_a_tensor_is_refused(self, wrong: Any) -> None:
        with pytest.raises(poptorch.Error, match=r"must take a torch\.tensor argument"):
            poptorch.nop(wrong)


class TestAvailableMemory:
    def test_it_returns_its_argument_and_checks_no_range(self) -> None:
        assert poptorch.set_available_memory(X, 7.0) is X

    def test_anything_but_a_tensor_is_refused(self) -> None:
        with pytest.raises(poptorch.Error, match="set_available_memory"):
            poptorch.set_available_memory([X], 0.3)

    @pytest.mark.parametrize(
        ("function", "inputs", "target"),
        [
            (lambda m, x: m.linear(x), X, ADDMM),
            (lambda m, x: m.linear(x), X.reshape(1, 2, 4), ADDMM),
            (lambda m, x: torch.matmul(x, m.linear.weight) + m.linear.bias, X.reshape(1, 2, 4), MM),
            (lambda m, x: m.conv_a(x), torch.ones(1, 1, 5, 5), CONVOLUTION),
            (
                lambda m, x: nn.functional.embedding(x, m.linear.weight),
                torch.ones(2, 2).int(),
                "aten.embedding.default",
            ),
            (lambda m, x: torch.relu(m.linear(x)), X, "aten.relu.default"),
        ],
        ids=["linear", "linear rank 3", "matmul and bias", "convolution", "embedding", "relu stays relu"],
    )
    def test_the_hint_reaches_the_op_behind_a_bias_or_a_reshape(
        self, function: Any, inputs: Tensor, target: str
    ) -> None:
        ops = compiled_ops(lambda m, x: poptorch.set_available_memory(function(m, x), 0.25), inputs)
        assert hinted(ops, "available_memory_proportion") == {target: 0.25}


MODES = {
    MatMulSerializationMode.InputChannels: "input_channels",
    MatMulSerializationMode.ReducingDim: "reducing_dim",
    MatMulSerializationMode.OutputChannels: "output_channels",
}
LENGTHS = {
    MatMulSerializationMode.InputChannels: 6,
    MatMulSerializationMode.ReducingDim: 4,
    MatMulSerializationMode.OutputChannels: 10,
}


def serialized(mode: MatMulSerializationMode, factor: int, keep: bool = False) -> Any:
    return lambda m, a, b: poptorch.serializedMatMul(a[0], b[0], mode, factor, keep)


class TestSerializedMatMul:
    """The product of `[6, 4]` and `[4, 10]`; the leading 1 is the batch dimension of the inputs."""

    LEFT = torch.linspace(-1, 1, 24).reshape(1, 6, 4)
    RIGHT = torch.linspace(0, 2, 40).reshape(1, 4, 10)

    @given(mode=st.sampled_from(list(MODES)), data=st.data(), keep=st.booleans())
    def test_it_is_the_plain_product_for_every_divisor(
        self, mode: MatMulSerializationMode, data: st.DataObject, keep: bool
    ) -> None:
        factor = data.draw(st.sampled_from([f for f in range(1, 11) if LENGTHS[mode] % f == 0]))
        product = on_device(serialized(mode, factor, keep))(self.LEFT, self.RIGHT)
        assert torch.equal(product, self.LEFT[0] @ self.RIGHT[0])

    @pytest.mark.parametrize("mode", MODES)
    def test_a_factor_that_does_not_divide_the_dimension_is_refused(self, mode: MatMulSerializationMode) -> None:
        for factor in (LENGTHS[mode] + 1, 0, -1):
            with pytest.raises(poptorch.Error, match=f"factor {factor} does not divide the dimension of {mode.name}"):
                on_device(serialized(mode, factor))(self.LEFT, self.RIGHT)

    @pytest.mark.parametrize("mode", MODES)
    def test_the_request_is_noted_on_the_product(self, mode: MatMulSerializationMode) -> None:
        ops = compiled_ops(serialized(mode, 2, True), self.LEFT, self.RIGHT)
        expected = {"mode": MODES[mode], "factor": 2, "keep_precision": True}
        assert hinted(ops, "serialized") == {MM: expected}

    def test_disabled_needs_no_factor(self) -> None:
        disabled = MatMulSerializationMode.Disabled
        product = on_device(lambda m, a, b: poptorch.serializedMatMul(a[0], b[0], disabled))(self.LEFT, self.RIGHT)
        assert torch.equal(product, self.LEFT[0] @ self.RIGHT[0])

    def test_on_the_cpu_it_is_matmul_whatever_the_factor(self) -> None:
        product = poptorch.serializedMatMul(self.LEFT, self.RIGHT, MatMulSerializationMode.ReducingDim, factor=3)
        assert torch.equal(product, self.LEFT @ self.RIGHT)

    @pytest.mark.parametrize(
        "wrong",
        [{"mode": "reducing_dim"}, {"mode": None}, {"factor": 2.0}, {"factor": "2"}, {"keep_precision": 1}],
    )
    def test_arguments_of_other_types_are_refused(self, wrong: dict[str, Any]) -> None:
        arguments = {
            "mode": MatMulSerializationMode.ReducingDim,
            "factor": 2,
            "keep_precision": False,
            **wrong,
        }
        with pytest.raises(AssertionError, match=next(iter(wrong))):
            poptorch.serializedMatMul(self.LEFT, self.RIGHT, **arguments)
