"""Arguments of a call, and nested structures as arguments and results (executor reference, sections 5 and 7.1)."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from executor_support import Module, gradient, inference, quiet, runs, training, with_loss
from loading_datasets import Sample as Box
from loading_datasets import SampleParser
from torch import Tensor, nn

import poptorch

ONE, TWO, THREE = torch.ones(2), torch.full((2,), 2.0), torch.ones(3)
X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Sub(nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor | None = None, *, scale: Any = 1) -> Tensor:
        return (x - y) * scale


class Anything(nn.Module):
    def forward(self, t: Any, u: Any = None, **more: Any) -> Tensor:
        return torch.ones(1) * 2


def subtracts(*args: Any, **kwargs: Tensor) -> Tensor:
    """Subtracts the second value of a dict (or of the keywords) from the first."""
    first, second = (args[0] if args else kwargs).values()
    return first - second


class Closed(OrderedDict[str, Tensor]):
    """A dict like the outputs of Hugging Face's models: items are set one by one, and nothing else changes it."""

    def update(self, *_: Any, **__: Any) -> None:
        raise TypeError("no update")


class TestBinding:
    def test_open_signatures(self) -> None:
        def gathered(*args: Tensor, last: Tensor, **kwargs: Tensor) -> list[Tensor]:
            return [*args, last, *(kwargs[name] for name in sorted(kwargs))]

        executor = runs(gathered)
        for keywords in ({"last": ONE, "b": TWO, "a": ONE}, {"a": ONE, "b": TWO, "last": ONE}):
            assert [t[0].item() for t in executor(ONE, TWO, **keywords)] == [1, 2, 1, 1, 2]
        executor = runs(gathered)
        executor(*[ONE] * 5, last=ONE)
        words = "Number of positional arguments mismatch: expected 5 arguments but got 4"
        with pytest.raises(poptorch.Error, match=words):
            executor(*[ONE] * 4, last=ONE)
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument"):
            runs(gathered)(ONE)

    def test_keywords_and_dicts_keep_the_order_of_the_compilation(self, caplog: pytest.LogCaptureFixture) -> None:
        assert runs(subtracts)(z=TWO, a=ONE).tolist() == [1, 1]
        executor = runs(subtracts)
        assert executor(a=ONE, z=TWO).tolist() == [-1, -1]
        assert executor(z=TWO, a=ONE).tolist() == [-1, -1]
        assert "partial support" not in caplog.text
        for kind in (dict, Closed):
            executor = runs(subtracts)
            assert executor(kind(a=TWO, b=ONE)).tolist() == [1, 1]
            assert executor(kind(b=ONE, a=TWO)).tolist() == [1, 1]
        assert caplog.text.count("only have partial support") == 2
        executor = runs(lambda pairs: pairs[0]["a"] - pairs[0]["b"])
        assert executor([{"a": TWO, "b": ONE}]).tolist() == executor([{"b": ONE, "a": TWO}]).tolist() == [1, 1]

    def test_a_default_value_that_is_a_tensor_is_an_input(self) -> None:
        class WithDefault(nn.Module):
            def forward(self, x: Tensor, bias: Tensor = torch.tensor([1.0, 2.0])) -> Tensor:  # noqa: B008
                return x + bias

        executor = inference(WithDefault(), quiet(deviceIterations=2))
        assert executor(torch.zeros(2)).tolist() == [1, 2], "each micro-batch gets one of its rows"
        assert executor(torch.zeros(2), torch.tensor([5.0, 6.0])).tolist() == [5, 6]
        with pytest.raises(AssertionError, match=r"Invalid batch dimension.*\[2\]"):
            inference(WithDefault(), quiet(deviceIterations=4))(torch.zeros(4))

    @pytest.mark.parametrize(
        ("args", "kwargs", "error", "words"),
        [
            ((ONE,), {}, poptorch.Error, "Mandatory parameter y missing"),
            ((), {"y": TWO}, poptorch.Error, "Mandatory parameter x missing"),
            ((ONE, TWO, None, ONE), {}, AssertionError, "Too many arguments provided"),
            ((ONE, TWO), {"w": ONE}, AssertionError, "w is not a valid parameter"),
            ((ONE, TWO), {"x": ONE}, AssertionError, "x was passed more than once"),
        ],
    )
    def test_mistakes_among_right_calls(self, args: Any, kwargs: Any, error: type[Exception], words: str) -> None:
        executor = inference(Sub())
        rights: list[Any] = [((ONE, TWO), {}), ((ONE,), {"y": TWO}), ((), {"y": TWO, "x": ONE}), ((ONE, TWO, None), {})]
        for right, named in rights:
            with pytest.raises(error, match=words):
                executor(*args, **kwargs)
            assert executor(*right, **named).tolist() == [-1, -1]


class TestAcceptedValues:
    @pytest.mark.parametrize("value", [None, 3, 2.5, "text", True, (1, "a"), np.array([2.0, 3.0])])
    def test_other_values_are_baked_in(self, value: Any) -> None:
        executor = runs(lambda x, value: (x, value))
        for _ in range(2):
            assert np.array_equal(executor(ONE, value)[1], value)
        for other in ("another", np.array([5.0, 3.0])):
            with pytest.raises(poptorch.Error, match=r"(Value|Type) mismatch for args\[1\]"):
                executor(ONE, other)

    def test_no_inputs_and_tensors_without_dimensions_in_a_single_micro_batch(self) -> None:
        model = Module(lambda model: model.weight * 2, weight=nn.Parameter(torch.tensor([1.0, 2.0])))
        assert inference(model)().tolist() == [2, 4]
        assert runs(lambda x: x)(torch.tensor(3.0)).item() == 3
        with pytest.raises(AssertionError, match="Invalid batch dimension"):
            runs(lambda x: x, deviceIterations=2)(torch.tensor(3.0))

    def test_strided_tensors_are_copied_and_others_detached(self, caplog: pytest.LogCaptureFixture) -> None:
        executor = runs(lambda x: x, deviceIterations=2)
        strided = torch.arange(8.0).reshape(2, 4).t()
        for _ in range(2):
            assert torch.equal(executor(strided), strided)
        assert caplog.text.count("not contiguous") == 1
        assert "requires_grad" not in caplog.text
        wanting = torch.ones(2, requires_grad=True)
        assert not runs(lambda x: x)(wanting).requires_grad
        assert wanting.grad is None
        assert "requires_grad" in caplog.text

    @pytest.mark.parametrize("strided", [False, True])
    def test_what_forward_changes_in_an_input_is_written_back(self, strided: bool) -> None:
        x = torch.zeros(4, 2).t() if strided else torch.zeros(2, 4)
        assert runs(lambda x: (x.add_(1), None)[1], deviceIterations=2)(x) is None
        assert torch.equal(x, torch.ones(2, 4))

    def test_a_tensor_that_is_given_twice_is_two_inputs(self) -> None:
        """The device has a copy of each: a change of one does not reach the other."""
        x = torch.zeros(2, 2)
        assert torch.equal(runs(lambda changed, same: changed.add_(1) + same)(x, x), torch.ones(2, 2))
        assert torch.equal(x, torch.ones(2, 2))
        # Rows of one tensor share its memory too.
        assert runs(lambda changed, same: changed.add_(1) + same)(x[:1], x[1:]).tolist() == [[3, 3]]
        assert x.tolist() == [[2.0, 2.0], [1.0, 1.0]]

    def test_arguments_themselves_are_left_alone(self) -> None:
        def forward(values: dict[str, Tensor], more: list[Tensor]) -> Tensor:
            more.append(values.pop("b"))
            return values["a"] + more[-1]

        values, more = {"a": ONE, "b": TWO}, [ONE]
        assert runs(forward)(values, more).tolist() == [3, 3]
        assert list(values) == ["a", "b"]
        assert len(more) == 1


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Sample:
    x: Tensor | None
    label: Any = "none"
    more: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Derived:
    """Its constructor takes something else than its fields, and must not run again."""

    x: Tensor = field(init=False)
    source: Tensor
    count: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", self.source * 2)


@dataclass
class Logits(Closed):
    """Is a data class and a dict of its fields that are not None, as there."""

    logits: Any = None
    hidden: Any = None

    def __post_init__(self) -> None:
        given = self.logits if isinstance(self.logits, dict) else {"logits": self.logits, "hidden": self.hidden}
        for name, value in given.items():
            if value is not None:
                self[name] = value

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


STRUCTURES: dict[str, Callable[[Tensor], Any]] = {
    "named tuple": lambda x: Pair(x, Pair(x + 1, None)),
    "data class": lambda x: Sample(x + 1, "name", [x, x * 2]),
    "frozen": lambda x: [Derived(x)],
    "model output": lambda x: Logits(logits=x, hidden=(x + 1, x + 2)),
    "model output without its first field": lambda x: Logits(hidden=x),
    "ordered": lambda x: OrderedDict(b=x, a=defaultdict(list, {"c": x + 1})),
    "nested": lambda x: (x, [x + 1, {"b": x + 2, "a": Pair(x + 3, None)}], [{"k": (x, x)}], "text", 5),
}


def shown(value: Any, tensor: Callable[[Tensor], Any] = Tensor.tolist) -> Any:
    """Return a structure in a form that can be compared, its types and the order of its keys included."""
    if isinstance(value, Tensor):
        return tensor(value)
    if is_dataclass(value):
        parts = [getattr(value, each.name) for each in fields(value)]
    elif isinstance(value, dict):
        parts = [getattr(value, "default_factory", None)]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        return value
    parts += value.items() if isinstance(value, dict) else ()
    return type(value), [shown(part, tensor) for part in parts]


class TestStructures:
    @pytest.mark.parametrize("name", STRUCTURES)
    def test_they_arrive_and_come_back_in_their_own_types_with_the_tensors_of_each_call(self, name: str) -> None:
        make, traced = STRUCTURES[name], []

        def forward(value: Any, x: Tensor) -> Any:
            assert shown(value, Tensor.size) == shown(make(X), Tensor.size)
            traced.append(1)
            return value, make(x)

        executor = runs(forward)
        executor(make(X), X)
        assert shown(executor(make(5 * X), 3 * X)) == shown((make(5 * X), make(3 * X)))
        assert traced == [1]

    def test_the_batch_is_joined_in_each_of_them_and_values_are_those_of_the_compilation(self) -> None:
        counter = iter(range(10))
        executor = runs(lambda x: Sample(x, next(counter), more=[x.sum(1)]), deviceIterations=2)
        for _ in range(2):
            assert shown(executor(X)) == shown(Sample(X, 0, [torch.tensor([3.0, 7.0])]))

    def test_the_loss_may_be_inside(self) -> None:
        model = with_loss(lambda m, x: m.layer(x), layer=nn.Linear(2, 1, bias=False))
        inside = Module(lambda m, x: Logits(hidden=m.inner(x)), inner=model, layer=model.layer)
        torch.testing.assert_close(gradient(inside, X), X.sum(0, keepdim=True))

    def test_a_type_that_cannot_be_taken_apart_is_refused_by_name(self) -> None:
        with pytest.raises(poptorch.Error, match=r"inside an object of type set.*data classes"):
            runs(lambda x: {x})(X)

    def test_a_custom_type_comes_back_through_its_parser(self) -> None:
        poptorch.registerCustomArgParser(Box, SampleParser())
        try:
            executor = runs(lambda box: Box(box.x * 2, box.y + 1))
            out = executor(Box(ONE, TWO))
            assert (out.x.tolist(), out.y.tolist()) == ([2, 2], [3, 3])
            with pytest.raises(poptorch.Error, match=r"Shape mismatch for args\[0\]"):
                executor(Box(THREE, TWO))
        finally:
            poptorch.registerCustomArgParser(Box, None)


# What a model was compiled for, what it is called with, and the words that say how they differ (section 5.3). The graph
# has the numbers of the compilation; PopTorch raises for a changed number where a structure holds no tensor at all.
DIFFERENCES: list[tuple[tuple[Any, ...], tuple[Any, ...], str]] = [
    ((ONE,), (THREE,), r"Shape mismatch for t: expected torch.Size\(\[2\]\) but got torch.Size\(\[3\]\)"),
    ((ONE,), (ONE.long(),), "Data type mismatch for t: expected torch.float32 but got torch.int64"),
    ((ONE, 5), (ONE, 3), "Value mismatch for u: expected 5 but got 3"),
    ((ONE, ONE), (ONE, None), "Type mismatch for u: expected <class 'torch.Tensor'> but got <class 'NoneType'>"),
    (((ONE, ONE),), ([ONE, ONE],), "Type mismatch for t: expected <class 'tuple'> but got <class 'list'>"),
    (((ONE, ONE),), ((ONE,),), "Length mismatch for t"),
    (((ONE, ONE),), ((ONE, THREE),), r"Shape mismatch for t\[1\]"),
    (([ONE, ONE],), ([ONE, 3],), r"Type mismatch for t\[1\]: expected <class 'torch.Tensor'> but got <class 'int'>"),
    (({"x": ONE},), ({"z": ONE},), r"Keys mismatch for t.*Missing arguments: x\..*Unexpected arguments: z\."),
    (({"x": ONE},), ({"x": THREE},), r"Shape mismatch for t\[x\]"),
    (([2.0],), ([3.0],), r"Value mismatch for t: expected \[2.0\] but got \[3.0\]"),
    (([],), ([2.0],), "Value mismatch for t"),
    (([ONE, 2.0],), ([ONE, 3.0],), r"Value mismatch for t\[1\]: expected 2.0 but got 3.0"),
    ((({"scale": 2.0},),), (({"scale": 3.0},),), r"Value mismatch for t\[0\]\[scale\]"),
    ((Sample(ONE, 2.0),), (Sample(ONE, 3.0),), "Value mismatch for t.label: expected 2.0 but got 3.0"),
    ((Sample(ONE, 2.0),), (Sample(THREE, 2.0),), "Shape mismatch for t.x"),
    ((Sample(None, 2.0),), (Sample(None, 3.0),), "Value mismatch for t"),
]


class TestConsistency:
    @pytest.mark.parametrize(("compiled", "given", "words"), DIFFERENCES)
    def test_a_difference_is_named_with_the_way_out(self, compiled: Any, given: Any, words: str) -> None:
        executor = inference(Anything())
        executor(*compiled)
        with pytest.raises(poptorch.Error, match=words) as refusal:
            executor(*given)
        assert "don't match the inputs used to compile the model" in refusal.value.message
        assert "destroy()" in refusal.value.message
        executor(*compiled)
        executor.destroy()
        executor(*given)

    def test_keyword_arguments_go_by_their_own_names_and_lists_are_compared_by_their_tensors_only(self) -> None:
        executor = inference(Anything())
        executor([ONE, [TWO]], x=ONE)
        with pytest.raises(poptorch.Error, match=r"Missing arguments: x\. Unexpected arguments: z\."):
            executor([ONE, [TWO]], z=ONE)
        with pytest.raises(poptorch.Error, match="Shape mismatch for x: expected"):
            executor([ONE, [TWO]], x=THREE)
        executor([[ONE], TWO], x=ONE)


# Functions of a model whose parameters are float64, with a table of three float64 numbers, and its layer.
IN_DOUBLE: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[], nn.Module]]] = {
    "a plain model": (lambda m, x: m.layer(x), lambda: nn.Linear(3, 2)),
    "double()": (lambda m, x: m.layer(x.double()), lambda: nn.Linear(3, 2)),
    "to()": (lambda m, x: m.layer(x.to(torch.float64)), lambda: nn.Linear(3, 2)),
    "type()": (lambda m, x: m.layer(x.type(torch.DoubleTensor)), lambda: nn.Linear(3, 2)),
    "an attribute": (lambda m, x: m.layer(x * m.table), lambda: nn.Linear(3, 2)),
    "a product with an attribute": (lambda m, x: m.layer(x) @ m.table, lambda: nn.Linear(3, 3)),
    "made of one type": (lambda m, x: m.layer(x + torch.ones(3, dtype=torch.float64)), lambda: nn.Linear(3, 2)),
    "made of numpy's": (lambda m, x: m.layer(x * torch.tensor(np.linspace(0, 1, 3))), lambda: nn.Linear(3, 2)),
    "a sum of that type": (lambda m, x: m.layer(x).sum(dtype=torch.float64), lambda: nn.Linear(3, 2)),
    "a softmax of that type": (lambda m, x: m.layer(x).softmax(-1, torch.float64)[:, 0], lambda: nn.Linear(3, 2)),
    "a power": (lambda m, x: torch.float_power(m.layer(x), 2), lambda: nn.Linear(3, 2)),
    "a recurrent layer": (lambda m, x: m.layer(x.double())[0], lambda: nn.GRU(3, 4)),
    "statistics": (lambda m, x: m.layer(x.double()) ** 3, lambda: nn.BatchNorm1d(3)),
    "attention": (
        lambda m, x: m.layer(*[x.double()[None]] * 3)[0],
        lambda: nn.MultiheadAttention(3, 1, batch_first=True),
    ),
}


class TestTypes:
    """The table of section 5.4: what a tensor is on the host, and what it is when it comes back."""

    @pytest.mark.parametrize(
        "host", ["float32", "float16", "int32", "bool", "uint8", "int8", "int16", "int64", "float64"]
    )
    def test_an_input_that_passes_through(self, host: str) -> None:
        x = torch.tensor([0, 1, 1, 0]).to(getattr(torch, host))
        out = runs(lambda x: x, deviceIterations=2)(x)
        assert out.dtype is getattr(torch, {"int64": "int32", "float64": "float32"}.get(host, host))
        assert out.tolist() == x.tolist()
        assert out.data_ptr() != x.data_ptr()

    def test_what_the_device_does_not_have_is_cut_to_32_bits_or_another_float(self) -> None:
        assert runs(lambda x: x)(torch.tensor([2**33 + 5])).tolist() == [5]

    @pytest.mark.parametrize(("host", "device"), [(torch.bfloat16, torch.float16), (torch.float64, torch.float32)])
    def test_a_type_that_the_device_does_not_have_is_another_one_everywhere(
        self, host: torch.dtype, device: torch.dtype
    ) -> None:
        """Inputs, weights, constants, casts, and what forward makes (operators reference, 4)."""
        seen: list[torch.dtype] = []

        def forward(model: Any, x: Tensor) -> Tensor:
            made = torch.ones(2, dtype=host) + torch.tensor([1.0, 2.0], dtype=host) + model.plain
            seen.extend(t.dtype for t in (x, model.layer.weight, made, x.int().to(host), x.sum(dtype=host), x.to(host)))
            return model.layer(x.to(host) + made)

        layer = nn.Linear(2, 2).to(host)
        model = Module(forward, layer=layer)
        model.plain = torch.ones(2, dtype=host)
        x = torch.tensor([[0.5, 1.5]])
        out = inference(model)(x.to(host))
        assert {out.dtype, *seen} == {device}
        expected = (x + torch.tensor([3.0, 4.0])) @ layer.weight.float().T + layer.bias.float()
        torch.testing.assert_close(out.float(), expected, rtol=2e-3, atol=2e-3)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_such_a_model_trains_and_keeps_its_type_on_the_host(self, dtype: torch.dtype) -> None:
        model = with_loss(lambda m, x: m.weight * x, weight=nn.Parameter(torch.ones(1, dtype=dtype)))
        wrapped = training(model, lr=0.25)
        wrapped(torch.ones(1, dtype=dtype))
        assert (model.weight.dtype, model.weight.item()) == (dtype, 0.75)

    def test_results_are_never_64_bits_wide(self, caplog: pytest.LogCaptureFixture) -> None:
        def forward(x: Tensor) -> list[Tensor]:
            drawn = [torch.randperm(4), torch.randint(0, 9, (3,)), torch.arange(3)]
            return [x.argmax(), (x > 0).sum(), x.max(0).indices, *drawn, x.double()]

        executor = runs(forward)
        for _ in range(2):
            *whole, real = executor(torch.tensor([1.0, 4.0, 2.0, -1.0]))
            assert {out.dtype for out in whole} == {torch.int32}
            assert real.dtype is torch.float32
            assert [out.item() for out in whole[:3]] == [1, 3, 1]
        assert caplog.text.count("returned as torch.int32, in which large values lose their range") == 1

    @pytest.mark.parametrize("name", IN_DOUBLE)
    @pytest.mark.parametrize("host", [torch.float32, torch.float64])
    def test_a_model_in_double_trains_in_single_as_pytorch_does_in_double(self, name: str, host: torch.dtype) -> None:
        """A device has no float64: it computes nearly what PyTorch does in it. Weights on the host stay float64."""
        function, make = IN_DOUBLE[name]
        torch.manual_seed(0)
        model = with_loss(function, layer=make().double(), table=torch.linspace(0, 1, 3, dtype=torch.float64))
        plain, x = copy.deepcopy(model.layer), torch.rand(4, 3)
        expected = function(SimpleNamespace(layer=plain, table=model.table), x.double())
        expected.sum().backward()
        executor = training(model, lr=1.0)
        out, loss = executor(x.to(host))
        executor.copyWeightsToHost()
        assert (out.dtype, loss.dtype) == (torch.float32, torch.float32)
        torch.testing.assert_close(out, expected.float())
        for weight, before in zip(model.layer.parameters(), plain.parameters(), strict=True):
            assert weight.dtype is torch.float64
            torch.testing.assert_close(weight.detach().float(), (before - before.grad).float())

    def test_where_doubles_are_the_usual_type_the_device_has_singles_too(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            made = torch.ones(2) + torch.zeros(2) * torch.rand(2) + torch.full((2,), 2.0) * torch.tensor([1.0, 2.0])
            return model.layer(x) * made + torch.arange(2.0) + torch.linspace(0, 1, 2)

        torch.set_default_dtype(torch.float64)
        try:
            model, x = with_loss(forward, layer=nn.Linear(3, 2)), torch.rand(4, 3)
            expected = forward(model, x)
            out, loss = training(model)(x)
        finally:
            torch.set_default_dtype(torch.float32)
        assert (x.dtype, out.dtype, loss.dtype) == (torch.float64, torch.float32, torch.float32)
        torch.testing.assert_close(out, expected.float())
