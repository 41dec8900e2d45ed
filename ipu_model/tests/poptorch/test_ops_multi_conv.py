"""`MultiConv` (execution reference, section 8.4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from function_models import compiled_ops, on_device
from torch import Tensor

import poptorch
from poptorch import MultiConv, MultiConvPlanType

IMAGE = torch.linspace(-1, 1, 25).reshape(1, 1, 5, 5)


def with_context(context: MultiConv) -> Any:
    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        with context as entered:
            assert entered is None
            a = model.conv_a(x)
            b = torch.relu(model.conv_b(x))
        return a, b

    return forward


def plans(context: MultiConv) -> list[dict[str, Any]]:
    """Return what is noted on the two convolutions, without the name of the group."""
    ops = compiled_ops(with_context(context), IMAGE)
    hints = [node.meta["hints"]["multi_conv"] for node in ops if "convolution" in str(node.target)]
    assert len({hint["group"] for hint in hints}) == 1
    return [{key: value for key, value in hint.items() if key != "group"} for hint in hints]


def test_results_are_those_of_the_separate_convolutions() -> None:
    fused = on_device(with_context(MultiConv()))(IMAGE)
    apart = on_device(lambda m, x: (m.conv_a(x), torch.relu(m.conv_b(x))))(IMAGE)
    assert poptorch.testing.allclose(fused, apart)


def test_on_the_cpu_it_does_nothing_not_even_when_empty_or_nested() -> None:
    with MultiConv() as outer, MultiConv() as inner:
        assert outer is None
        assert inner is None


def test_an_instance_can_be_used_again() -> None:
    context = MultiConv()

    def forward(model: Any, x: Tensor) -> Tensor:
        with context:
            y = model.conv_a(x)
        with context:
            return y + model.conv_b(x)

    ops = compiled_ops(forward, IMAGE)
    groups = [node.meta["hints"]["multi_conv"]["group"] for node in ops if "convolution" in str(node.target)]
    assert len(set(groups)) == 2


def test_without_settings_the_group_and_its_size_are_noted() -> None:
    assert plans(MultiConv()) == [{"size": 2}, {"size": 2}]


def test_single_values_go_for_all_convolutions() -> None:
    context = (
        MultiConv()
        .availableMemoryProportions(0.2)
        .partialsTypes([torch.half])
        .planType(MultiConvPlanType.Serial)
        .perConvReservedTiles(100)
        .cycleBackOff(0.3)
        .enableConvDithering(True)
    )
    plan = {
        "size": 2,
        "available_memory_proportion": 0.2,
        "partials_type": "half",
        "plan_type": "serial",
        "per_conv_reserved_tiles": 100,
        "cycle_back_off": 0.3,
        "conv_dithering": True,
    }
    assert plans(context) == [plan, plan]


def test_lists_give_one_value_to_each_convolution() -> None:
    context = (
        MultiConv()
        .availableMemoryProportions((0.1, 0.2))
        .partialsTypes([torch.float, torch.half])
        .enableConvDithering([False, True])
    )
    assert plans(context) == [
        {"size": 2, "available_memory_proportion": 0.1, "partials_type": "float", "conv_dithering": False},
        {"size": 2, "available_memory_proportion": 0.2, "partials_type": "half", "conv_dithering": True},
    ]


def test_none_takes_a_setting_back() -> None:
    context = MultiConv().availableMemoryProportions(0.2).planType(MultiConvPlanType.Parallel).enableConvDithering(True)
    context.availableMemoryProportions(None).planType(None).enableConvDithering(None)
    assert plans(context) == [{"size": 2}, {"size": 2}]


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(poptorch.Error, match=r"3 values of available_memory_proportion were set for 2 convolutions"):
        plans(MultiConv().availableMemoryProportions([0.1, 0.2, 0.3]))


def test_a_body_without_convolution_is_refused() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        with MultiConv():
            return torch.relu(x)

    with pytest.raises(poptorch.Error, match="Unexpected end_multi_conv"):
        on_device(forward)(IMAGE)


def test_nested_contexts_are_refused_and_the_next_compilation_is_clean() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        with MultiConv():
            y = model.conv_a(x)
            with MultiConv():
                return y + model.conv_b(x)

    with pytest.raises(poptorch.Error, match=r"Nested poptorch\.MultiConv"):
        on_device(forward)(IMAGE)
    assert plans(MultiConv()) == [{"size": 2}, {"size": 2}]


def test_an_error_in_the_body_comes_out_as_it_is() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        with MultiConv():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        on_device(forward)(IMAGE)


@pytest.mark.parametrize(
    ("setter", "wrong", "error", "fragment"),
    [
        ("availableMemoryProportions", 1, AssertionError, "Invalid available memory proportion!"),
        ("availableMemoryProportions", [], AssertionError, "Invalid available memory proportion!"),
        ("availableMemoryProportions", [0.1, 1], AssertionError, "Invalid available memory proportion!"),
        ("availableMemoryProportions", "0.1", AssertionError, "Invalid available memory proportion!"),
        ("partialsTypes", "half", ValueError, "Invalid partials types"),
        ("partialsTypes", torch.int32, ValueError, "Invalid partials types"),
        ("partialsTypes", [torch.half, None], ValueError, "Invalid partials types"),
        ("partialsTypes", [], ValueError, "Invalid partials types"),
        ("planType", "parallel", AssertionError, "Invalid plan type!"),
        ("planType", 0, AssertionError, "Invalid plan type!"),
        ("perConvReservedTiles", 1.0, AssertionError, "reserved tiles"),
        ("cycleBackOff", 1, AssertionError, "cycle back-off"),
        ("enableConvDithering", 1, ValueError, "must be bool or list of bools"),
        ("enableConvDithering", [True, 0], ValueError, "must be bool or list of bools"),
    ],
)
def test_setters_refuse_other_types(setter: str, wrong: Any, error: type[Exception], fragment: str) -> None:
    with pytest.raises(error, match=fragment):
        getattr(MultiConv(), setter)(wrong)
