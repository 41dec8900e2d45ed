"""Arguments of a call: binding, values, consistency, types (executor reference, section 5)."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from executor_support import Module, inference, quiet
from torch import Tensor, nn

import poptorch

BIAS = torch.tensor([1.0, 2.0])
ONE, TWO, THREE = torch.ones(2), torch.full((2,), 2.0), torch.ones(3)


class Sub(nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor | None = None, *, scale: Any = 1) -> Tensor:
        return (x - y) * scale


class Open(nn.Module):
    def forward(self, *args: Tensor, last: Tensor, **kwargs: Tensor) -> tuple[Tensor, ...]:
        return (*args, last, *(kwargs[name] for name in sorted(kwargs)))


class Anything(nn.Module):
    def forward(self, t: Any, u: Any = None, **more: Any) -> Tensor:
        return torch.ones(1) * 2


def subtracts(_model: nn.Module, *args: Any, **kwargs: Tensor) -> Tensor:
    """Subtracts the second value of a dict (or of the keywords) from the first."""
    first, second = (args[0] if args else kwargs).values()
    return first - second


class TestBinding:
    def test_positional_and_keyword_forms_are_the_same_call(self) -> None:
        executor = inference(Sub())
        results = [executor(ONE, TWO), executor(ONE, y=TWO), executor(y=TWO, x=ONE), executor(ONE, TWO, None)]
        assert all(result.tolist() == [-1, -1] for result in results)

    def test_open_signatures(self) -> None:
        executor = inference(Open())
        given = executor(ONE, TWO, last=ONE, b=TWO, a=ONE)
        again = executor(ONE, TWO, a=ONE, b=TWO, last=ONE)
        assert [t.tolist() for t in given] == [t.tolist() for t in again]
        assert [t[0].item() for t in given] == [1, 2, 1, 1, 2]
        executor = inference(Open())
        executor(*[ONE] * 5, last=ONE)
        words = "Number of positional arguments mismatch: expected 5 arguments but got 4"
        with pytest.raises(poptorch.Error, match=words):
            executor(*[ONE] * 4, last=ONE)

    def test_extra_keywords_keep_the_order_in_which_the_caller_wrote_them(self) -> None:
        assert inference(Module(subtracts))(z=TWO, a=ONE).tolist() == [1, 1]
        executor = inference(Module(subtracts))
        assert executor(a=ONE, z=TWO).tolist() == [-1, -1]
        assert executor(z=TWO, a=ONE).tolist() == [-1, -1], "the order of the compilation stays"

    def test_a_default_value_that_is_a_tensor_is_an_input(self) -> None:
        class WithDefault(nn.Module):
            def forward(self, x: Tensor, bias: Tensor = BIAS) -> Tensor:
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
    def test_mistakes(self, args: Any, kwargs: Any, error: type[Exception], words: str) -> None:
        executor = inference(Sub())
        for _ in range(2):
            with pytest.raises(error, match=words):
                executor(*args, **kwargs)
            executor(ONE, TWO)

    def test_a_missing_argument_of_an_open_signature_is_the_modules_own_error(self) -> None:
        def add(a: Tensor, b: Tensor) -> Tensor:
            return a + b

        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            inference(Module(lambda model, *args, **kwargs: add(*args, **kwargs)))(ONE)


class Closed(OrderedDict[str, Tensor]):
    """A dict like the outputs of Hugging Face's models: items are set one by one, and nothing else changes it."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("You cannot use ``update`` on a Closed instance.")


class TestAcceptedValues:
    def test_containers_keep_their_types_inside_forward(self) -> None:
        Pair = namedtuple("Pair", "left right")
        seen: list[Any] = []

        def forward(model: nn.Module, *values: Any) -> Tensor:
            seen.extend(values)
            pair, ordered, nested = values
            total: Tensor = pair.left + pair.right + ordered["a"] + nested[0]["k"][1]
            return total

        assert inference(Module(forward))(Pair(ONE, ONE), OrderedDict(a=TWO), [{"k": (TWO, TWO)}]).tolist() == [6, 6]
        assert [type(value) for value in seen] == [Pair, OrderedDict, list]
        assert isinstance(seen[2][0], dict)
        assert isinstance(seen[2][0]["k"], tuple)

    @pytest.mark.parametrize("value", [None, 3, 2.5, "text", True, (1, "a")])
    def test_other_values_are_baked_in(self, value: Any) -> None:
        executor = inference(Module(lambda model, x, value: (x, value)))
        assert executor(ONE, value)[1] == value
        with pytest.raises(poptorch.Error, match=r"mismatch for args\[1\]|Type mismatch"):
            executor(ONE, "another")

    def test_an_array_is_compared_as_a_whole(self) -> None:
        executor = inference(Module(lambda model, x, value: x * float(value[0])))
        values = np.array([2.0, 3.0])
        assert [executor(ONE, values).tolist() for _ in range(2)] == [[2, 2]] * 2
        with pytest.raises(poptorch.Error, match=r"Value mismatch for args\[1\]"):
            executor(ONE, np.array([5.0, 3.0]))

    def test_dicts_log_one_warning_when_compiling_and_any_key_order_is_the_same(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        executor = inference(Module(subtracts))
        assert executor({"a": TWO, "b": ONE}).tolist() == [1, 1]
        assert executor({"b": ONE, "a": TWO}).tolist() == [1, 1], "the order of the compilation counts"
        assert caplog.text.count("only have partial support") == 1

    def test_a_dict_that_refuses_update_is_an_argument_like_any_other(self) -> None:
        def forward(model: nn.Module, values: Closed) -> Tensor:
            assert type(values) is Closed
            return values["a"] - values["b"]

        executor = inference(Module(forward))
        for order in ("ab", "ba"):
            values = Closed({key: torch.full((2,), float(ord(key))) for key in order})
            assert executor(values).tolist() == [-1, -1]

    def test_no_inputs_at_all(self) -> None:
        model = Module(lambda model: model.weight * 2, weight=nn.Parameter(torch.tensor([1.0, 2.0])))
        assert inference(model)().tolist() == [2, 4]

    def test_tensors_without_dimensions_need_a_single_micro_batch(self) -> None:
        assert inference(nn.Identity())(torch.tensor(3.0)).item() == 3
        with pytest.raises(AssertionError, match="Invalid batch dimension"):
            inference(nn.Identity(), quiet(deviceIterations=2))(torch.tensor(3.0))

    def test_strided_tensors_are_copied_with_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        executor = inference(nn.Identity(), quiet(deviceIterations=2))
        strided = torch.arange(8.0).reshape(2, 4).t()
        for _ in range(2):
            assert torch.equal(executor(strided), strided)
        assert caplog.text.count("not contiguous") == 1

    def test_inputs_that_want_gradients_are_detached_with_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        x = torch.ones(2, requires_grad=True)
        assert not inference(nn.Identity())(x).requires_grad
        assert x.grad is None
        assert "requires_grad" in caplog.text

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (torch.empty(0, 2, 5), r"Zero-sized tensors are unsupported \(Got shape \[0, 2, 5\]\)"),
            (torch.eye(2).to_sparse(), r"Unsupported input type: a tensor of layout .* to_dense\(\)"),
            (torch.ones(2).to(torch.complex64), "Unsupported input type torch.complex64. Pass the real and imaginary"),
            (torch.ones(2).to(torch.float8_e4m3fn), "Unsupported input type torch.float8_e4m3fn"),
        ],
    )
    def test_what_a_device_cannot_take_is_refused(self, value: Tensor, words: str) -> None:
        with pytest.raises(poptorch.Error, match=words):
            inference(nn.Identity())(value)

    def test_a_call_needs_data_in_the_hosts_memory(self) -> None:
        executor, shapes = inference(Sub()), torch.ones(2, 2, device="meta")
        executor.compile(shapes, shapes)
        with pytest.raises(poptorch.Error, match="Inputs must be on the CPU, but a tensor is on meta"):
            executor(shapes, shapes)
        assert executor(torch.ones(2, 2), torch.ones(2, 2)).tolist() == [[0.0, 0.0]] * 2

    @pytest.mark.parametrize("strided", [False, True])
    def test_what_forward_changes_in_an_input_is_written_back(self, strided: bool) -> None:
        x = torch.zeros(4, 2).t() if strided else torch.zeros(2, 4)
        assert inference(Module(lambda model, x: (x.add_(1), None)[1]), quiet(deviceIterations=2))(x) is None
        assert torch.equal(x, torch.ones(2, 4))

    def test_a_tensor_that_is_given_twice_is_two_inputs(self) -> None:
        """The device has a copy of each: a change of one does not reach the other."""
        change = Module(lambda model, changed, same: changed.add_(1) + same)
        x = torch.zeros(2, 2)
        assert torch.equal(inference(change)(x, x), torch.ones(2, 2))
        assert torch.equal(x, torch.ones(2, 2))
        # Rows of one tensor share its memory too.
        assert torch.equal(inference(change)(x[:1], x[1:]), torch.full((1, 2), 3.0))
        assert x.tolist() == [[2.0, 2.0], [1.0, 1.0]]

    def test_arguments_themselves_are_left_alone(self) -> None:
        def forward(model: nn.Module, values: dict[str, Tensor], more: list[Tensor]) -> Tensor:
            more.append(values.pop("b"))
            return values["a"] + more[-1]

        values, more = {"a": ONE, "b": TWO}, [ONE]
        assert inference(Module(forward))(values, more).tolist() == [3, 3]
        assert list(values) == ["a", "b"]
        assert len(more) == 1


@dataclass
class Scaled:
    x: Tensor | None
    scale: float


# What a model was compiled for, what it is called with, and the words that say how they differ (section 5.3). The graph
# has the numbers of the compilation; PopTorch raises for a changed number where a structure holds no tensor at all.
DIFFERENCES: list[tuple[tuple[Any, ...], tuple[Any, ...], str]] = [
    ((ONE,), (THREE,), r"Shape mismatch for t: expected torch.Size\(\[2\]\) but got torch.Size\(\[3\]\)"),
    ((ONE,), (ONE.long(),), "Data type mismatch for t: expected torch.float32 but got torch.int64"),
    ((ONE.int(),), (ONE.long(),), "Data type mismatch for t"),
    ((ONE, 5), (ONE, 3), "Value mismatch for u: expected 5 but got 3"),
    ((ONE, ONE), (ONE, None), "Type mismatch for u: expected <class 'torch.Tensor'> but got <class 'NoneType'>"),
    (((ONE, ONE),), ([ONE, ONE],), "Type mismatch for t: expected <class 'tuple'> but got <class 'list'>"),
    (((ONE, ONE),), ((ONE,),), "Length mismatch for t"),
    (((ONE, ONE),), ((ONE, THREE),), r"Shape mismatch for t\[1\]"),
    (([ONE, ONE],), ([ONE, ONE, ONE],), "Length mismatch for t"),
    (([ONE, ONE],), ([ONE, 3],), r"Type mismatch for t\[1\]: expected <class 'torch.Tensor'> but got <class 'int'>"),
    (({"x": ONE},), ({"z": ONE},), r"Keys mismatch for t.*Missing arguments: x\..*Unexpected arguments: z\."),
    (({"x": ONE},), ({"x": THREE},), r"Shape mismatch for t\[x\]"),
    (([2.0],), ([3.0],), r"Value mismatch for t: expected \[2.0\] but got \[3.0\]"),
    (([2.0],), ([2.0, 3.0],), "Value mismatch for t"),
    (([],), ([2.0],), "Value mismatch for t"),
    (([ONE, 2.0],), ([ONE, 3.0],), r"Value mismatch for t\[1\]: expected 2.0 but got 3.0"),
    ((({"scale": 2.0},),), (({"scale": 3.0},),), r"Value mismatch for t\[0\]\[scale\]"),
    ((Scaled(ONE, 2.0),), (Scaled(ONE, 3.0),), "Value mismatch for t.scale: expected 2.0 but got 3.0"),
    ((Scaled(ONE, 2.0),), (Scaled(THREE, 2.0),), "Shape mismatch for t.x"),
    ((Scaled(None, 2.0),), (Scaled(None, 3.0),), "Value mismatch for t"),
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

    def test_keyword_arguments_go_by_their_own_names(self) -> None:
        executor = inference(Anything())
        executor(ONE, x=ONE)
        with pytest.raises(poptorch.Error, match=r"Missing arguments: x\. Unexpected arguments: z\."):
            executor(ONE, z=ONE)
        with pytest.raises(poptorch.Error, match="Shape mismatch for x: expected"):
            executor(ONE, x=THREE)

    def test_lists_are_compared_by_their_tensors_only(self) -> None:
        executor = inference(Anything())
        executor([ONE, [TWO]])
        executor([[ONE], TWO])

    def test_the_order_of_keys_inside_a_list_means_nothing(self) -> None:
        executor = inference(Module(lambda model, pairs: pairs[0]["a"] - pairs[0]["b"]))
        assert executor([{"a": TWO, "b": ONE}]).tolist() == [1, 1]
        assert executor([{"b": ONE, "a": TWO}]).tolist() == [1, 1]


class TestTypes:
    """The table of section 5.4: what a tensor is on the host, and what it is when it comes back."""

    @pytest.mark.parametrize(
        "host", ["float32", "float16", "int32", "bool", "uint8", "int8", "int16", "int64", "float64"]
    )
    def test_an_input_that_passes_through(self, host: str) -> None:
        x = torch.tensor([0, 1, 1, 0]).to(getattr(torch, host))
        out = inference(nn.Identity(), quiet(deviceIterations=2))(x)
        assert out.dtype is getattr(torch, {"int64": "int32", "float64": "float32"}.get(host, host))
        assert out.tolist() == x.tolist()
        assert out.data_ptr() != x.data_ptr()

    def test_bfloat16_comes_back_as_a_float_type_that_the_device_has(self) -> None:
        assert inference(nn.Identity())(torch.ones(2, dtype=torch.bfloat16)).dtype in (torch.float32, torch.float16)

    def test_large_integers_are_cut_to_32_bits(self) -> None:
        assert inference(nn.Identity())(torch.tensor([2**33 + 5])).tolist() == [5]

    @pytest.mark.parametrize(
        "compute",
        [
            lambda x: x.argmax(),
            lambda x: (x > 0).sum(),
            lambda x: x.max(0).indices,
            lambda x: torch.randperm(4),
            lambda x: torch.randint(0, 9, (3,)),
            lambda x: torch.arange(3),
            lambda x: x.double(),
        ],
    )
    def test_results_are_never_64_bits_wide(self, compute: Any) -> None:
        x = torch.tensor([1.0, 4.0, 2.0, -1.0])
        out = inference(Module(lambda model, x: compute(x)))(x)
        assert out.dtype is (torch.float32 if out.is_floating_point() else torch.int32)

    def test_a_warning_mentions_the_lost_range_once(self, caplog: pytest.LogCaptureFixture) -> None:
        executor = inference(Module(lambda model, x: x.argmax(-1)))
        for _ in range(2):
            assert executor(torch.eye(3)).tolist() == [0, 1, 2]
        assert caplog.text.count("lose their range") == 1

    def test_small_integers_and_a_cast_in_forward_are_the_usual_pattern(self) -> None:
        image = torch.tensor([0, 51, 255], dtype=torch.uint8)
        out = inference(Module(lambda model, image: image.half() / 255))(image)
        assert out.dtype is torch.float16
        torch.testing.assert_close(out, (image.float() / 255).half())
