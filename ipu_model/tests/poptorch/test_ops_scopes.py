"""`NameScope` and `Attribute` (execution reference, section 12)."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from function_models import FunctionModel, compiled_ops, on_device, quiet_options
from torch import Tensor

import poptorch
from poptorch import Attribute, NameScope

X = torch.arange(8.0).reshape(2, 4)


def noted(forward: Any, key: str) -> dict[str, Any]:
    """Return, for each kind of op, what the graph says under `key`."""
    return {str(node.target).split(".")[1]: node.meta.get(key) for node in compiled_ops(forward, X)}


def test_name_scopes_nest_and_end() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        with NameScope("outer") as entered:
            assert entered is None
            x = torch.tanh(x)
            with NameScope("inner"):
                x = torch.exp(x)
            x = torch.relu(x)
        return torch.sin(x)

    assert noted(forward, "name_scope") == {
        "tanh": "outer/",
        "exp": "outer/inner/",
        "relu": "outer/",
        "sin": None,
    }


@pytest.mark.parametrize("wrong", [1, None, ["a"]])
def test_a_name_that_is_no_string_is_refused(wrong: Any) -> None:
    with pytest.raises(AssertionError, match="string"):
        NameScope(wrong)


def test_attributes_are_restored_when_an_inner_body_ends() -> None:
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
    return {str(node.target).split(".")[1] for node in ops if "attributes" in node.meta}


def test_module_hooks_may_enter_and_leave_by_hand_at_every_call() -> None:
    model = hooked_model()
    model(X)
    assert linear_attributes(model) == {"t", "addmm"}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_model_with_such_hooks_can_be_copied_and_pickled(copied: Any) -> None:
    assert linear_attributes(copied(hooked_model())) == {"t", "addmm"}


def test_a_trace_that_failed_inside_leaves_nothing_behind() -> None:
    model = hooked_model()
    broken = poptorch.inferenceModel(model, quiet_options())
    with pytest.raises(RuntimeError):
        broken.compile(torch.ones(2, 3))
    assert linear_attributes(model) == {"t", "addmm"}


def test_neither_changes_a_result() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        with NameScope("a"), Attribute(outline={"layer": "1"}):
            return model.linear(x)

    assert torch.equal(on_device(forward)(X), on_device(lambda m, x: m.linear(x))(X))
