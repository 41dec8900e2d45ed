"""Annotations that leave values alone: hints, `MultiConv`, name scopes, attributes (execution reference, 7, 8, 11)."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict
from typing import Any, NamedTuple

import pytest
import torch
from function_models import FunctionModel, compiled_ops, hinted, on_device, quiet_options
from torch import Tensor, nn

import poptorch
from ipu_model.capture.graph import info_of
from ipu_model.step import Serialisation
from poptorch import Attribute, MatMulSerializationMode, MultiConv, MultiConvPlanType, NameScope

X = torch.arange(8.0).reshape(2, 4)
ADDMM, MM, CONVOLUTION = "aten.addmm.default", "aten.mm.default", "aten.convolution.default"


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class TestRecomputationCheckpoint:
    def test_on_the_cpu_everything_comes_back_as_it_came(self) -> None:
        assert poptorch.recomputationCheckpoint(X) is X
        assert poptorch.recomputationCheckpoint() == ()
        first, second = poptorch.recomputationCheckpoint(X, other := X + 1)
        assert (id(first), id(second)) == (id(X), id(other))
        for container in ([X, X], (X, X), [X], (X,)):
            result = poptorch.recomputationCheckpoint(container)
            assert type(result) is type(container)
            assert [id(tensor) for tensor in result] == [id(tensor) for tensor in container]

    def test_in_a_model_it_is_noted_on_the_op_that_computes_it_and_leaves_no_op(self) -> None:
        plain = compiled_ops(lambda m, x: m.linear(torch.tanh(x)), X)
        marked = compiled_ops(lambda m, x: m.linear(poptorch.recomputationCheckpoint(torch.tanh(x))), X)
        assert hinted(marked, "recomputation_checkpoint") == {"aten.tanh.default": True}
        assert [node.target for node in marked] == [node.target for node in plain]

    def test_a_mark_counts_only_if_the_model_goes_on_with_what_it_returns(self) -> None:
        def unused(model: Any, x: Tensor) -> Tensor:
            hidden = torch.tanh(x)
            poptorch.recomputationCheckpoint(hidden)
            return model.linear(hidden)

        def used_for_nothing(model: Any, x: Tensor) -> Tensor:
            hidden = torch.tanh(x)
            poptorch.recomputationCheckpoint(hidden).exp()
            return model.linear(hidden)

        for forward in (unused, used_for_nothing):
            assert hinted(compiled_ops(forward, X), "recomputation_checkpoint") == {}

    def test_containers_keep_their_type_inside_a_model_too(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            found = poptorch.recomputationCheckpoint(Pair(torch.tanh(x), torch.sin(x)))
            kept = poptorch.recomputationCheckpoint([torch.cos(x)])
            assert isinstance(found, Pair)
            assert isinstance(kept, list)
            return model.linear(found.first + found.second + kept[0])

        assert set(hinted(compiled_ops(forward, X), "recomputation_checkpoint")) == {
            "aten.tanh.default", "aten.sin.default", "aten.cos.default"
        }  # fmt: skip

    def test_a_memory_hint_finds_the_product_behind_a_mark(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            return poptorch.set_available_memory(poptorch.recomputationCheckpoint(model.linear(x)), 0.3)

        assert hinted(compiled_ops(forward, X), "available_memory_proportion") == {ADDMM: 0.3}

    def test_it_works_from_a_forward_hook_without_changing_results(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            return model.linear(x)

        plain = on_device(forward)
        with_hook = on_device(forward)
        with_hook.model.linear.register_forward_hook(
            lambda module, inputs, output: poptorch.recomputationCheckpoint(output)
        )
        assert torch.equal(with_hook(X), plain(X))


def test_nop_is_an_op_of_its_own_that_survives() -> None:
    assert poptorch.nop(X) is X
    ops = compiled_ops(lambda m, x: poptorch.nop(x) + 1, X)
    assert [str(node.target) for node in ops] == ["aten.clone.default", "aten.add.Tensor"]


class TestAvailableMemory:
    def test_it_returns_its_argument_and_checks_no_range(self) -> None:
        assert poptorch.set_available_memory(X, 7.0) is X

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
    MatMulSerializationMode.InputChannels: ("input_channels", 6),
    MatMulSerializationMode.ReducingDim: ("reducing_dim", 4),
    MatMulSerializationMode.OutputChannels: ("output_channels", 10),
}


class TestSerializedMatMul:
    """The product of `[6, 4]` and `[4, 10]`; the leading 1 is the batch dimension of the inputs."""

    LEFT = torch.linspace(-1, 1, 24).reshape(1, 6, 4)
    RIGHT = torch.linspace(0, 2, 40).reshape(1, 4, 10)

    @pytest.mark.parametrize("mode", MODES)
    def test_it_is_the_plain_product_for_every_divisor(self, mode: MatMulSerializationMode) -> None:
        name, length = MODES[mode]
        for factor in (f for f in range(1, 11) if length % f == 0):
            forward = lambda m, a, b, f=factor: poptorch.serializedMatMul(a[0], b[0], mode, f, f > 2)  # noqa: E731
            assert torch.equal(on_device(forward)(self.LEFT, self.RIGHT), self.LEFT[0] @ self.RIGHT[0])
            expected = {MM: Serialisation(name, factor, keep_precision=factor > 2)}
            assert hinted(compiled_ops(forward, self.LEFT, self.RIGHT), "serialisation") == expected

    def test_disabled_and_on_the_cpu_no_factor_matters(self) -> None:
        disabled = MatMulSerializationMode.Disabled
        product = on_device(lambda m, a, b: poptorch.serializedMatMul(a[0], b[0], disabled))(self.LEFT, self.RIGHT)
        assert torch.equal(product, self.LEFT[0] @ self.RIGHT[0])
        product = poptorch.serializedMatMul(self.LEFT, self.RIGHT, MatMulSerializationMode.ReducingDim, factor=3)
        assert torch.equal(product, self.LEFT @ self.RIGHT)


IMAGE = torch.linspace(-1, 1, 25).reshape(1, 1, 5, 5)


def with_context(context: MultiConv) -> Any:
    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        with context as entered:
            assert entered is None
            a = model.conv_a(x)
            b = torch.relu(model.conv_b(x))
        return a, b

    return forward


def multi_conv_plans(context: MultiConv) -> list[dict[str, Any]]:
    """Return what is noted on the two convolutions, without the name of the group."""
    ops = compiled_ops(with_context(context), IMAGE)
    hints = [asdict(hint) for hint in hinted_in_order(ops)]
    assert len({hint.pop("group") for hint in hints}) == 1
    return [{key: value for key, value in hint.items() if value is not None} for hint in hints]


def hinted_in_order(ops: list[torch.fx.Node]) -> list[Any]:
    marks = [info_of(node).marks for node in ops if "convolution" in str(node.target)]
    return [mark.multi_convolution for mark in marks]


class TestMultiConv:
    """`MultiConv` (section 8.4)."""

    def test_results_are_those_of_the_separate_convolutions(self) -> None:
        fused = on_device(with_context(MultiConv()))(IMAGE)
        apart = on_device(lambda m, x: (m.conv_a(x), torch.relu(m.conv_b(x))))(IMAGE)
        assert poptorch.testing.allclose(fused, apart)

    def test_on_the_cpu_it_does_nothing_not_even_when_empty_or_nested(self) -> None:
        with MultiConv() as outer, MultiConv() as inner:
            assert outer is None
            assert inner is None

    def test_an_instance_can_be_used_again(self) -> None:
        context = MultiConv()

        def forward(model: Any, x: Tensor) -> Tensor:
            with context:
                y = model.conv_a(x)
            with context:
                return y + model.conv_b(x)

        ops = compiled_ops(forward, IMAGE)
        groups = [hint.group for hint in hinted_in_order(ops)]
        assert len(set(groups)) == 2

    SETTINGS = (
        lambda c: c.availableMemoryProportions(0.2).partialsTypes([torch.half]).planType(MultiConvPlanType.Serial)
        .perConvReservedTiles(100).cycleBackOff(0.3).enableConvDithering(True),
        lambda c: c.availableMemoryProportions((0.1, 0.2)).partialsTypes([torch.float, torch.half])
        .enableConvDithering([False, True]),
        lambda c: c.availableMemoryProportions(0.2).planType(MultiConvPlanType.Parallel).enableConvDithering(True)
        .availableMemoryProportions(None).planType(None).enableConvDithering(None)
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("settings", "plans"),
        [
            (lambda c: c, [{}, {}]),
            # Single values go for all convolutions, lists give one to each, and None takes a setting back.
            (
                SETTINGS[0],
                [
                    {
                        "available_memory_proportion": 0.2, "partials_type": "half", "plan_type": "serial",
                        "per_conv_reserved_tiles": 100, "cycle_back_off": 0.3, "conv_dithering": True
                    }
                ] * 2
            ),
            (
                SETTINGS[1],
                [
                    {"available_memory_proportion": 0.1, "partials_type": "float", "conv_dithering": False},
                    {"available_memory_proportion": 0.2, "partials_type": "half", "conv_dithering": True}
                ]
            ),
            (SETTINGS[2], [{}, {}])
        ]
    )  # fmt: skip
    def test_settings_are_noted_on_the_convolutions(self, settings: Any, plans: list[dict[str, Any]]) -> None:
        assert multi_conv_plans(settings(MultiConv())) == [{"size": 2, **plan} for plan in plans]


def noted(forward: Any, key: str) -> dict[str, Any]:
    """Return, for each kind of op, what the graph says under `key`."""
    return {str(node.target).split(".")[1]: getattr(info_of(node), key) or None for node in compiled_ops(forward, X)}


class AttributeHooks:
    """Enters and leaves one attribute around every call of a layer, as programs do by hand."""

    def __init__(self, layer: torch.nn.Module, attribute: Attribute) -> None:
        self.attribute = attribute
        layer.register_forward_pre_hook(self.enter)
        layer.register_forward_hook(self.leave)

    def enter(self, *args: Any) -> None:
        self.attribute.__enter__()

    def leave(self, *args: Any) -> None:
        self.attribute.__exit__(None, None, None)


def forward_twice(model: Any, x: Tensor) -> Tensor:
    return torch.sin(model.linear(torch.tanh(model.linear(x))))


def hooked_model() -> FunctionModel:
    model = FunctionModel(forward_twice).eval()
    AttributeHooks(model.linear, Attribute(outline={"layer": "linear"}))
    return model


def linear_attributes(model: torch.nn.Module) -> set[str]:
    executor = poptorch.inferenceModel(model, quiet_options())
    executor.compile(X)
    assert executor._compiled is not None
    ops = [node for node in executor._compiled.graph.ops.nodes if node.op == "call_function"]
    return {str(node.target).split(".")[1] for node in ops if info_of(node).attributes}


class TestScopes:
    """`NameScope` and `Attribute` (section 12)."""

    def test_name_scopes_nest_and_end(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with NameScope("outer") as entered:
                assert entered is None
                x = torch.tanh(x)
                with NameScope("inner"):
                    x = torch.exp(x)
                x = torch.relu(x)
            return torch.sin(x)

        outer, inner = (0, "outer"), (0, "inner")
        assert noted(forward, "name_scopes") == {"tanh": (outer,), "exp": (outer, inner), "relu": (outer,), "sin": None}

    def test_attributes_are_restored_when_an_inner_body_ends(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with Attribute(outline={"layer": "1", "kind": "a"}) as entered:
                assert entered is None
                x = torch.tanh(x)
                with Attribute(outline={"layer": "2"}, other={"key": "value"}):
                    x = torch.exp(x)
                x = torch.relu(x)
            return torch.sin(x)

        outer = {"outline": {"layer": "1", "kind": "a"}}
        inner = {"outline": {"layer": "2", "kind": "a"}, "other": {"key": "value"}}
        assert noted(forward, "attributes") == {"tanh": outer, "exp": inner, "relu": outer, "sin": None}

    def test_module_hooks_may_enter_and_leave_by_hand_at_every_call(self) -> None:
        model = hooked_model()
        model(X)
        assert linear_attributes(model) == {"t", "addmm"}

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
    def test_a_model_with_such_hooks_can_be_copied_and_pickled(self, copied: Any) -> None:
        assert linear_attributes(copied(hooked_model())) == {"t", "addmm"}

    def test_a_trace_that_failed_inside_leaves_nothing_behind(self) -> None:
        model = hooked_model()
        broken = poptorch.inferenceModel(model, quiet_options())
        with pytest.raises(RuntimeError):
            broken.compile(torch.ones(2, 3))
        assert linear_attributes(model) == {"t", "addmm"}

    def test_neither_changes_a_result(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with NameScope("a"), Attribute(outline={"layer": "1"}):
                return model.linear(x)

        assert torch.equal(on_device(forward)(X), on_device(lambda m, x: m.linear(x))(X))
