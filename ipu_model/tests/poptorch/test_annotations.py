"""Annotations that leave values alone: hints, `MultiConv`, name scopes, attributes (execution reference, 7, 8, 11)."""

from __future__ import annotations

import copy
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from executor_support import FunctionModel, compiled_ops, graph_of, on_device, pickled, quiet
from torch import Tensor, nn

import poptorch
from ipu_model.capture.graph import info_of
from ipu_model.step import Serialisation
from poptorch import Attribute, MatMulSerializationMode, MultiConv, MultiConvPlanType, NameScope, OverlapMode

X = torch.arange(8.0).reshape(2, 4)
ADDMM, MM, CONVOLUTION = "aten.addmm.default", "aten.mm.default", "aten.convolution.default"


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def marked(forward: Any, key: str, *inputs: Tensor) -> dict[str, Any]:
    values = {str(node.target): getattr(info_of(node).marks, key) for node in compiled_ops(forward, *(inputs or (X,)))}
    return {target: value for target, value in values.items() if value is not None and value is not False}


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
        def forward(m: Any, x: Tensor) -> Tensor:
            return m.linear(poptorch.recomputationCheckpoint(torch.tanh(x)))

        assert marked(forward, "recomputation_checkpoint") == {"aten.tanh.default": True}
        plain = compiled_ops(lambda m, x: m.linear(torch.tanh(x)), X)
        assert [node.target for node in compiled_ops(forward, X)] == [node.target for node in plain]

    @pytest.mark.parametrize("use", [lambda marked: None, lambda marked: marked.exp()])
    def test_a_mark_counts_only_if_the_model_goes_on_with_what_it_returns(self, use: Any) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            hidden = torch.tanh(x)
            use(poptorch.recomputationCheckpoint(hidden))
            return model.linear(hidden)

        assert marked(forward, "recomputation_checkpoint") == {}

    def test_containers_keep_their_type_inside_a_model_too(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            pair = poptorch.recomputationCheckpoint(Pair(torch.tanh(x), torch.sin(x)))
            single = poptorch.recomputationCheckpoint([torch.cos(x)])
            assert (type(pair), type(single)) == (Pair, list)
            return model.linear(pair.first + pair.second + single[0])

        ops = {"aten.tanh.default", "aten.sin.default", "aten.cos.default"}
        assert set(marked(forward, "recomputation_checkpoint")) == ops


def test_nop_is_an_op_of_its_own_that_survives() -> None:
    assert poptorch.nop(X) is X
    ops = compiled_ops(lambda m, x: poptorch.nop(x) + 1, X)
    assert [str(node.target) for node in ops] == ["aten.clone.default", "aten.add.Tensor"]


@pytest.mark.parametrize(("function", "inputs", "target"), [
    (lambda m, x: m.linear(x), X, ADDMM),
    (lambda m, x: m.linear(x), X.reshape(1, 2, 4), ADDMM),
    (lambda m, x: poptorch.recomputationCheckpoint(m.linear(x)), X, ADDMM),
    (lambda m, x: torch.matmul(x, m.linear.weight) + m.linear.bias, X.reshape(1, 2, 4), MM),
    (lambda m, x: m.conv_a(x), torch.ones(1, 1, 5, 5), CONVOLUTION),
    (lambda m, x: nn.functional.embedding(x, m.linear.weight), torch.ones(2, 2).int(), "aten.embedding.default"),
    (lambda m, x: torch.relu(m.linear(x)), X, "aten.relu.default"),
])  # fmt: skip
def test_available_memory_reaches_the_op_behind_a_bias_a_reshape_or_a_mark(
    function: Any, inputs: Tensor, target: str
) -> None:
    assert poptorch.set_available_memory(X, 7.0) is X  # no range is checked
    forward = lambda m, x: poptorch.set_available_memory(function(m, x), 0.25)  # noqa: E731
    assert marked(forward, "available_memory_proportion", inputs) == {target: 0.25}


# The product of `[6, 4]` and `[4, 10]`; the leading 1 is the batch dimension of the inputs.
LEFT, RIGHT = torch.linspace(-1, 1, 24).reshape(1, 6, 4), torch.linspace(0, 2, 40).reshape(1, 4, 10)
MODES = [("InputChannels", "input_channels", 6), ("ReducingDim", "reducing_dim", 4)]


@pytest.mark.parametrize(("mode", "name", "length"), [*MODES, ("OutputChannels", "output_channels", 10)])
def test_a_serialised_product_is_the_plain_one_for_every_divisor(mode: str, name: str, length: int) -> None:
    for factor in (f for f in range(1, 11) if length % f == 0):

        def forward(m: Any, a: Tensor, b: Tensor, f: int = factor) -> Tensor:
            return poptorch.serializedMatMul(a[0], b[0], MatMulSerializationMode[mode], f, f > 2)

        assert torch.equal(on_device(forward)(LEFT, RIGHT), LEFT[0] @ RIGHT[0])
        expected = {MM: Serialisation(name, factor, keep_precision=factor > 2)}
        assert marked(forward, "serialisation", LEFT, RIGHT) == expected


def test_of_a_disabled_one_and_on_the_cpu_no_factor_matters() -> None:
    disabled = on_device(lambda m, a, b: poptorch.serializedMatMul(a[0], b[0], MatMulSerializationMode.Disabled))
    assert torch.equal(disabled(LEFT, RIGHT), LEFT[0] @ RIGHT[0])
    product = poptorch.serializedMatMul(LEFT, RIGHT, MatMulSerializationMode.ReducingDim, factor=3)
    assert torch.equal(product, LEFT @ RIGHT)


IMAGE = torch.linspace(-1, 1, 25).reshape(1, 1, 5, 5)


def with_context(context: MultiConv) -> Any:
    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        with context as entered:
            assert entered is None
            a = model.conv_a(x)
            b = torch.relu(model.conv_b(x))
        return a, b

    return forward


def hinted_in_order(forward: Any) -> list[Any]:
    nodes = [node for node in compiled_ops(forward, IMAGE) if "convolution" in str(node.target)]
    return [info_of(node).marks.multi_convolution for node in nodes]


SINGLE = {
    "available_memory_proportion": 0.2, "partials_type": "half", "plan_type": "serial",
    "per_conv_reserved_tiles": 100, "cycle_back_off": 0.3, "conv_dithering": True,
}  # fmt: skip
FIRST = {"available_memory_proportion": 0.1, "partials_type": "float", "conv_dithering": False}
SECOND = {"available_memory_proportion": 0.2, "partials_type": "half", "conv_dithering": True}


class TestMultiConv:
    def test_results_are_those_of_the_separate_convolutions(self) -> None:
        fused = on_device(with_context(MultiConv()))(IMAGE)
        apart = on_device(lambda m, x: (m.conv_a(x), torch.relu(m.conv_b(x))))(IMAGE)
        assert poptorch.testing.allclose(fused, apart)

    def test_it_may_be_used_again_and_on_the_cpu_it_does_nothing_not_even_when_nested(self) -> None:
        context = MultiConv()
        with MultiConv() as outer, context as inner:
            assert (outer, inner) == (None, None)

        def forward(model: Any, x: Tensor) -> Tensor:
            with context:
                y = model.conv_a(x)
            with context:
                return y + model.conv_b(x)

        assert len({hint.group for hint in hinted_in_order(forward)}) == 2

    @pytest.mark.parametrize(("settings", "plans"), [
        (lambda c: c, [{}, {}]),
        # Single values go for all convolutions, lists give one to each, and None takes a setting back.
        (lambda c: c.availableMemoryProportions(0.2).partialsTypes([torch.half]).planType(MultiConvPlanType.Serial)
         .perConvReservedTiles(100).cycleBackOff(0.3).enableConvDithering(True), [SINGLE, SINGLE]),
        (lambda c: c.availableMemoryProportions((0.1, 0.2)).partialsTypes([torch.float, torch.half])
         .enableConvDithering([False, True]), [FIRST, SECOND]),
        (lambda c: c.availableMemoryProportions(0.2).planType(MultiConvPlanType.Parallel).enableConvDithering(True)
         .availableMemoryProportions(None).planType(None).enableConvDithering(None), [{}, {}]),
    ])  # fmt: skip
    def test_settings_are_noted_on_the_convolutions(self, settings: Any, plans: list[dict[str, Any]]) -> None:
        hints = [asdict(hint) for hint in hinted_in_order(with_context(settings(MultiConv())))]
        assert len({hint.pop("group") for hint in hints}) == 1
        found = [{key: value for key, value in hint.items() if value is not None} for hint in hints]
        assert found == [{"size": 2, **plan} for plan in plans]


def noted(forward: Any, key: str) -> dict[str, Any]:
    """Return, for each kind of op, what the graph says under `key`."""
    return {str(node.target).split(".")[1]: getattr(info_of(node), key) or None for node in compiled_ops(forward, X)}


def enter(attribute: Attribute, *args: Any) -> None:
    attribute.__enter__()


def leave(attribute: Attribute, *args: Any) -> None:
    attribute.__exit__(None, None, None)


def forward_twice(model: Any, x: Tensor) -> Tensor:
    return torch.sin(model.linear(torch.tanh(model.linear(x))))


class TestScopes:
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

    @pytest.mark.parametrize("copied", [lambda m: m, copy.deepcopy, pickled])
    def test_module_hooks_may_enter_and_leave_by_hand_at_every_call(self, copied: Any) -> None:
        model = FunctionModel(forward_twice).eval()
        attribute = Attribute(outline={"layer": "linear"})
        model.linear.register_forward_pre_hook(partial(enter, attribute))
        model.linear.register_forward_hook(partial(leave, attribute))
        model(X)
        model = copied(model)
        with pytest.raises(RuntimeError):  # a trace that fails inside leaves nothing behind
            poptorch.inferenceModel(model, quiet()).compile(torch.ones(2, 3))
        ops = graph_of(poptorch.inferenceModel(model, quiet()), X).ops.nodes
        named = [node for node in ops if node.op == "call_function" and info_of(node).attributes]
        assert {str(node.target).split(".")[1] for node in named} == {"t", "addmm"}


def sharded() -> poptorch.Options:
    options = quiet().setExecutionStrategy(poptorch.ShardedExecution())
    options.TensorLocations.numIOTiles(32)
    return options


class TestOverlap:
    @pytest.mark.parametrize("mode", OverlapMode)
    def test_no_mode_changes_a_value(self, mode: OverlapMode) -> None:
        into, out = poptorch.set_overlap_for_input, poptorch.set_overlap_for_output
        for value in (X, [X, [X, None]], {"a": X, "b": ("text", X)}, None):
            assert into(value, mode) is out(value, mode) is value
        expected = on_device(lambda m, x: m.linear(x))(X)
        # NoOverlap imposes no strategy.
        options = sharded if mode is not OverlapMode.NoOverlap else quiet
        for forward in (
            lambda m, x: m.linear(into(x, mode)), lambda m, x: out(m.linear(x), mode),
            lambda m, x: out(m.linear(into(x, mode)), mode),
        ):  # fmt: skip
            assert torch.equal(on_device(forward, options())(X), expected)

    def test_marked_tensors_may_have_other_uses_and_the_log_names_what_is_switched_on(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def forward(model: Any, x: Tensor) -> tuple[Tensor, ...]:
            x = poptorch.set_overlap_for_input(x, OverlapMode.OverlapAccumulationLoop)
            y = x + x
            poptorch.set_overlap_for_output(y, OverlapMode.OverlapDeviceIterationLoop)
            return y, y + 1, x.add_(1)

        with caplog.at_level("DEBUG", logger="poptorch:cpp"):
            y, more, changed = on_device(forward, sharded())(X.clone())
        assert torch.equal(y, 2 * X)
        assert torch.equal(more, 2 * X + 1)
        assert torch.equal(changed, X + 1)
        assert "useHostCopyOps set to value 1" in caplog.text
        assert "enableExplicitMainLoops set to value 1" in caplog.text
