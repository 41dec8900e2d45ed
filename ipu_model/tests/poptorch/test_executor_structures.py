"""Nested structures of tensors as arguments and as outputs: they arrive, and come back, in their own types."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import pytest
import torch
from executor_support import Module, inference, quiet, training
from torch import Tensor, nn

import poptorch

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Pair(NamedTuple):
    left: Tensor
    right: Any


@dataclass
class Sample:
    x: Tensor
    label: str = "none"
    more: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    count: int


@dataclass
class Derived:
    """Its constructor takes something else than its fields."""

    x: Tensor = field(init=False)
    source: Tensor

    def __post_init__(self) -> None:
        self.x = self.source * 2


class ModelOutput(OrderedDict):  # type: ignore[type-arg]  # as in the library that it imitates
    """Behaves like the outputs of Hugging Face's models: a data class and a dict of its fields that are not None."""

    def __init_subclass__(cls) -> None:
        dataclass(cls)

    def __post_init__(self) -> None:
        first = getattr(self, fields(self)[0].name)  # type: ignore[arg-type]  # a data class by __init_subclass__
        given = first if isinstance(first, dict) else {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        for name, value in given.items():
            if value is not None:
                self[name] = value

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)

    def update(self, *_: Any) -> None:
        raise TypeError("a ModelOutput has no update")


class Logits(ModelOutput):
    logits: Any = None
    hidden: Any = None


def returned(make: Callable[[Tensor], Any]) -> Any:
    """Return what a model gives back, from its second call."""
    executor = inference(Module(lambda model, x: make(x)))
    executor(X)
    return executor(X)


class TestOutputs:
    def test_named_tuples(self) -> None:
        out = returned(lambda x: Pair(x, Pair(x + 1, None)))
        assert type(out) is Pair
        assert type(out.right) is Pair
        assert torch.equal(out.right.left, X + 1)
        assert out.right.right is None

    def test_data_classes(self) -> None:
        out = returned(lambda x: Sample(x + 1, "name", [x, x * 2]))
        assert type(out) is Sample
        assert out.label == "name"
        assert torch.equal(out.more[1], X * 2)
        frozen = returned(lambda x: [Frozen(x, 3)])[0]
        assert type(frozen) is Frozen
        assert frozen.count == 3
        assert torch.equal(frozen.x, X)

    def test_a_data_class_is_not_constructed_again(self) -> None:
        out = returned(Derived)
        assert torch.equal(out.source, X)
        assert torch.equal(out.x, X * 2)

    def test_dicts_that_are_data_classes_too(self) -> None:
        out = returned(lambda x: Logits(logits=x, hidden=(x + 1, x + 2)))
        assert type(out) is Logits
        assert list(out) == ["logits", "hidden"]
        assert torch.equal(out.logits, X)
        assert torch.equal(out.hidden[1], X + 2)
        assert out["logits"] is out.logits
        assert returned(lambda x: Logits(hidden=x)).logits is None

    def test_other_dicts(self) -> None:
        out = returned(lambda x: OrderedDict(b=x, a=defaultdict(list, {"c": x + 1})))
        assert type(out) is OrderedDict
        assert list(out) == ["b", "a"]
        assert out["a"]["missing"] == []
        assert torch.equal(out["a"]["c"], X + 1)

    def test_the_batch_is_joined_in_each_of_them(self) -> None:
        executor = inference(Module(lambda model, x: Sample(x, more=[x.sum(1)])), quiet(deviceIterations=2))
        out = executor(X)
        assert torch.equal(out.x, X)
        assert out.more[0].tolist() == [3, 7]

    def test_the_loss_may_be_inside(self) -> None:
        def forward(model: Any, x: Tensor) -> Logits:
            out = model.layer(x)
            return Logits(logits=out, hidden=poptorch.identity_loss(out, "sum"))

        model: Any = Module(forward, layer=nn.Linear(2, 1, bias=False))
        before = model.layer.weight.detach().clone()
        executor = training(model, lr=1.0)
        executor(X)
        torch.testing.assert_close(before - model.layer.weight.detach(), X.sum(0, keepdim=True))

    def test_a_type_that_cannot_be_taken_apart_is_refused_by_name(self) -> None:
        with pytest.raises(poptorch.Error, match=r"inside an object of type set.*data classes"):
            returned(lambda x: {x})


class TestArguments:
    @pytest.mark.parametrize(
        "make",
        [
            lambda x: Pair(x, [x + 1]), lambda x: Sample(x, "name", [x + 1]), lambda x: Frozen(x, 2),
            lambda x: [{"a": (x, None)}], lambda x: Logits(logits=x, hidden=(x + 1,)), lambda x: OrderedDict(a=x),
            Derived,
        ],
        ids=["named tuple", "data class", "frozen", "nested", "model output", "ordered", "derived"],
    )  # fmt: skip
    def test_they_keep_their_types_and_each_call_has_its_own_tensors(self, make: Callable[[Tensor], Any]) -> None:
        seen = []

        executor = inference(Module(lambda model, value: (seen.append(type(value)), value)[1]))
        argument = make(X)
        executor(argument)
        out = executor(make(5 * X))
        assert type(out) is type(argument)
        assert all(torch.equal(a, b) for a, b in zip(tensors_in(out), tensors_in(make(5 * X)), strict=True))
        assert seen == [type(argument)]
        assert len(tensors_in(out)) > 0


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested containers and data classes, written without the package's own functions."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    if hasattr(value, "__dataclass_fields__"):
        return [tensor for name in value.__dataclass_fields__ for tensor in tensors_in(getattr(value, name))]
    return []
