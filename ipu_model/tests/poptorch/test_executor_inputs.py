"""Arguments of a call: binding, values, consistency, types (executor reference, section 5)."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from executor_support import inference, quiet
from torch import Tensor, nn

import poptorch

BIAS = torch.tensor([1.0, 2.0])


ONE, TWO = torch.ones(2), torch.full((2,), 2.0)


class Sub(nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor | None = None, *, scale: Any = 1) -> Tensor:
        return (x - y) * scale


class Open(nn.Module):
    def forward(self, *args: Tensor, last: Tensor, **kwargs: Tensor) -> tuple[Tensor, ...]:
        return (*args, last, *(kwargs[name] for name in sorted(kwargs)))


def identity(*names: str) -> nn.Module:
    """Return a module that returns its arguments, which have these names."""
    namespace: dict[str, Any] = {}
    exec(f"def forward(self, {', '.join(names)}): return ({', '.join(names)},)", namespace)
    return type("Identity", (nn.Module,), {"forward": namespace["forward"]})()


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

    def test_extra_keywords_keep_the_order_in_which_the_caller_wrote_them(self) -> None:
        class Subtracts(nn.Module):
            def forward(self, **kwargs: Tensor) -> Tensor:
                first, second = kwargs.values()
                return first - second

        assert inference(Subtracts())(z=TWO, a=ONE).tolist() == [1, 1]
        executor = inference(Subtracts())
        assert executor(a=ONE, z=TWO).tolist() == [-1, -1]
        assert executor(z=TWO, a=ONE).tolist() == [-1, -1], "the order of the compilation stays"

    def test_a_default_value_that_is_a_tensor_is_an_input(self) -> None:
        class WithDefault(nn.Module):
            def forward(self, x: Tensor, bias: Tensor = BIAS) -> Tensor:
                return x + bias

        executor = inference(WithDefault(), quiet().deviceIterations(2))
        assert executor(torch.zeros(2)).tolist() == [1, 2], "each micro-batch gets one of its rows"
        assert executor(torch.zeros(2), torch.tensor([5.0, 6.0])).tolist() == [5, 6]
        with pytest.raises(AssertionError, match=r"Invalid batch dimension.*\[2\]"):
            inference(WithDefault(), quiet().deviceIterations(4))(torch.zeros(4))

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
        class Needs(nn.Module):
            def forward(self, *args: Any, **kwargs: Any) -> Tensor:
                return self.add(*args, **kwargs)

            def add(self, a: Tensor, b: Tensor) -> Tensor:
                return a + b

        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            inference(Needs())(ONE)


class TestAcceptedValues:
    def test_containers_keep_their_types_inside_forward(self) -> None:
        Pair = namedtuple("Pair", "left right")
        seen: list[Any] = []

        class Look(nn.Module):
            def forward(self, *values: Any) -> Tensor:
                seen.extend(values)
                pair, ordered, nested = values
                return pair.left + pair.right + ordered["a"] + nested[0]["k"][1]

        out = inference(Look())(Pair(ONE, ONE), OrderedDict(a=TWO), [{"k": (TWO, TWO)}])
        assert out.tolist() == [6, 6]
        assert [type(value) for value in seen] == [Pair, OrderedDict, list]
        assert isinstance(seen[2][0], dict)
        assert isinstance(seen[2][0]["k"], tuple)

    @pytest.mark.parametrize("value", [None, 3, 2.5, "text", True, (1, "a")])
    def test_other_values_are_baked_in(self, value: Any) -> None:
        class Keeps(nn.Module):
            def forward(self, x: Tensor, value: Any) -> tuple[Tensor, Any]:
                return x, value

        executor = inference(Keeps())
        assert executor(ONE, value)[1] == value
        with pytest.raises(poptorch.Error, match=r"mismatch for value|Type mismatch"):
            executor(ONE, "another")

    def test_an_array_is_compared_as_a_whole(self) -> None:
        class Keeps(nn.Module):
            def forward(self, x: Tensor, value: Any) -> Tensor:
                return x * float(value[0])

        executor = inference(Keeps())
        values = np.array([2.0, 3.0])
        assert executor(ONE, values).tolist() == [2, 2]
        assert executor(ONE, values).tolist() == [2, 2]
        with pytest.raises(poptorch.Error, match="Value mismatch for value"):
            executor(ONE, np.array([5.0, 3.0]))

    def test_dicts_log_one_warning_when_compiling_and_any_key_order_is_the_same(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Minus(nn.Module):
            def forward(self, d: dict[str, Tensor]) -> Tensor:
                first, second = d.values()
                return first - second

        executor = inference(Minus())
        assert executor({"a": TWO, "b": ONE}).tolist() == [1, 1]
        assert executor({"b": ONE, "a": TWO}).tolist() == [1, 1], "the order of the compilation counts"
        assert caplog.text.count("only have partial support") == 1

    def test_no_inputs_at_all(self) -> None:
        class Constant(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))

            def forward(self) -> Tensor:
                return self.weight * 2

        assert inference(Constant())().tolist() == [2, 4]

    def test_tensors_without_dimensions_need_a_single_micro_batch(self) -> None:
        model = identity("x")
        assert inference(model)(torch.tensor(3.0))[0].item() == 3
        with pytest.raises(AssertionError, match="Invalid batch dimension"):
            inference(model, quiet().deviceIterations(2))(torch.tensor(3.0))

    def test_strided_tensors_are_copied_with_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        executor = inference(identity("x"), quiet().deviceIterations(2))
        strided = torch.arange(8.0).reshape(2, 4).t()
        for _ in range(2):
            assert torch.equal(executor(strided)[0], strided)
        assert caplog.text.count("not contiguous") == 1

    def test_inputs_that_want_gradients_are_detached_with_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        x = torch.ones(2, requires_grad=True)
        out = inference(identity("x"))(x)[0]
        assert not out.requires_grad
        assert x.grad is None
        assert "requires_grad" in caplog.text

    def test_empty_tensors_are_refused(self) -> None:
        with pytest.raises(poptorch.Error, match=r"Zero-sized tensors are unsupported \(Got shape \[0, 2, 5, 5\]\)"):
            inference(identity("x"))(torch.empty(0, 2, 5, 5))

    @pytest.mark.parametrize("strided", [False, True])
    def test_what_forward_changes_in_an_input_is_written_back(self, strided: bool) -> None:
        class Adds(nn.Module):
            def forward(self, x: Tensor) -> None:
                x.add_(1)

        x = torch.zeros(4, 2).t() if strided else torch.zeros(2, 4)
        assert inference(Adds(), quiet().deviceIterations(2))(x) is None
        assert torch.equal(x, torch.ones(2, 4))

    def test_a_tensor_that_is_given_twice_is_two_inputs(self) -> None:
        """The device has a copy of each: a change of one does not reach the other."""

        class Change(nn.Module):
            def forward(self, changed: Tensor, same: Tensor) -> Tensor:
                return changed.add_(1) + same

        x = torch.zeros(2, 2)
        assert torch.equal(inference(Change())(x, x), torch.ones(2, 2))
        assert torch.equal(x, torch.ones(2, 2))
        # Rows of one tensor share its memory too.
        assert torch.equal(inference(Change())(x[:1], x[1:]), torch.full((1, 2), 3.0))
        assert x.tolist() == [[2.0, 2.0], [1.0, 1.0]]

    def test_tensors_that_are_no_plain_arrays_are_refused(self) -> None:
        with pytest.raises(poptorch.Error, match=r"Unsupported input type: a tensor of layout .* to_dense\(\)"):
            inference(Sub())(torch.eye(2).to_sparse(), torch.ones(2, 2))

    def test_a_call_needs_data_in_the_hosts_memory(self) -> None:
        executor, shapes = inference(Sub()), torch.ones(2, 2, device="meta")
        executor.compile(shapes, shapes)
        with pytest.raises(poptorch.Error, match="Inputs must be on the CPU, but a tensor is on meta"):
            executor(shapes, shapes)
        assert executor(torch.ones(2, 2), torch.ones(2, 2)).tolist() == [[0.0, 0.0]] * 2

    def test_arguments_themselves_are_left_alone(self) -> None:
        class Pops(nn.Module):
            def forward(self, values: dict[str, Tensor], more: list[Tensor]) -> Tensor:
                more.append(values.pop("b"))
                return values["a"] + more[-1]

        values, more = {"a": ONE, "b": TWO}, [ONE]
        assert inference(Pops())(values, more).tolist() == [3, 3]
        assert list(values) == ["a", "b"]
        assert len(more) == 1


@dataclass
class Scaled:
    x: Tensor | None
    scale: float


class Anything(nn.Module):
    def forward(self, t: Any, u: Any = None, **more: Any) -> Tensor:
        return torch.ones(1) * 2


class Closed(OrderedDict[str, Tensor]):
    """A dict like the outputs of Hugging Face's models: items are set one by one, and nothing else changes it."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("You cannot use ``update`` on a Closed instance.")


def test_a_dict_that_refuses_update_is_an_argument_like_any_other() -> None:
    class Difference(nn.Module):
        def forward(self, values: Closed) -> Tensor:
            assert type(values) is Closed
            return values["a"] - values["b"]

    executor = inference(Difference())
    for order in ("ab", "ba"):
        values = Closed({key: torch.full((2,), float(ord(key))) for key in order})
        torch.testing.assert_close(executor(values), torch.full((2,), -1.0))


class TestConsistency:
    """The table of section 5.3."""

    @pytest.mark.parametrize(
        ("compiled", "given", "words"),
        [
            ((ONE,), (torch.ones(3),),
             r"Shape mismatch for t: expected torch.Size\(\[2\]\) but got torch.Size\(\[3\]\)"),
            ((ONE,), (torch.ones(2, dtype=torch.int64),),
             "Data type mismatch for t: expected torch.float32 but got torch.int64"),
            ((torch.ones(2, dtype=torch.int32),), (torch.ones(2, dtype=torch.int64),),
             "Data type mismatch for t"),
            ((ONE, 5), (ONE, 3), "Value mismatch for u: expected 5 but got 3"),
            ((ONE, ONE), (ONE, None),
             "Type mismatch for u: expected <class 'torch.Tensor'> but got <class 'NoneType'>"),
            (((ONE, ONE),), ([ONE, ONE],),
             "Type mismatch for t: expected <class 'tuple'> but got <class 'list'>"),
            (((ONE, ONE),), ((ONE,),), "Length mismatch for t"),
            (((ONE, ONE),), ((ONE, torch.ones(3)),), r"Shape mismatch for t\[1\]"),
            (([ONE, ONE],), ([ONE, ONE, ONE],), "Length mismatch for t"),
            (({"x": ONE},), ({"z": ONE},),
             r"Keys mismatch for t.*Missing arguments: x\..*Unexpected arguments: z\."),
            (({"x": ONE},), ({"x": torch.ones(3)},), r"Shape mismatch for t\[x\]"),
        ],
    )  # fmt: skip
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

    def test_the_number_of_positional_arguments(self) -> None:
        executor = inference(Open())
        executor(*[ONE] * 5, last=ONE)
        with pytest.raises(
            poptorch.Error, match="Number of positional arguments mismatch: expected 5 arguments but got 4"
        ):
            executor(*[ONE] * 4, last=ONE)

    def test_the_set_of_keywords(self) -> None:
        executor = inference(Anything())
        executor(ONE, x=ONE)
        with pytest.raises(poptorch.Error, match=r"Missing arguments: x\. Unexpected arguments: z\."):
            executor(ONE, z=ONE)

    def test_a_keyword_argument_goes_by_its_own_name(self) -> None:
        executor = inference(Anything())
        executor(ONE, x=ONE)
        with pytest.raises(poptorch.Error, match="Shape mismatch for x: expected"):
            executor(ONE, x=torch.ones(3))

    def test_lists_are_compared_by_their_tensors_only(self) -> None:
        executor = inference(Anything())
        executor([ONE, [TWO]])
        executor([[ONE], TWO])

    def test_the_order_of_keys_inside_a_list_means_nothing(self) -> None:
        class Subtracts(nn.Module):
            def forward(self, pairs: list[dict[str, Tensor]]) -> Tensor:
                return pairs[0]["a"] - pairs[0]["b"]

        executor = inference(Subtracts())
        assert executor([{"a": TWO, "b": ONE}]).tolist() == [1, 1]
        assert executor([{"b": ONE, "a": TWO}]).tolist() == [1, 1]

    @pytest.mark.parametrize(
        ("compiled", "given", "words"),
        [
            ([2.0], [3.0], r"Value mismatch for t: expected \[2.0\] but got \[3.0\]"),
            ([2.0], [2.0, 3.0], "Value mismatch for t"),
            ([], [2.0], "Value mismatch for t"),
            ([ONE, 2.0], [ONE, 3.0], r"Value mismatch for t\[1\]: expected 2.0 but got 3.0"),
            (({"scale": 2.0},), ({"scale": 3.0},), r"Value mismatch for t\[0\]\[scale\]"),
            (Scaled(ONE, 2.0), Scaled(ONE, 3.0), "Value mismatch for t.scale: expected 2.0 but got 3.0"),
            (Scaled(ONE, 2.0), Scaled(torch.ones(3), 2.0), "Shape mismatch for t.x"),
            (Scaled(None, 2.0), Scaled(None, 3.0), "Value mismatch for t"),
        ],
    )
    def test_a_changed_number_inside_a_structure_is_noticed(self, compiled: Any, given: Any, words: str) -> None:
        """The graph has the number of the compilation; PopTorch raises where a structure holds no tensor at all."""
        executor = inference(Anything())
        executor(compiled)
        with pytest.raises(poptorch.Error, match=words):
            executor(given)


class TestTypes:
    """The table of section 5.4: what a tensor is on the host, and what it is when it comes back."""

    @pytest.mark.parametrize(
        ("host", "returned"),
        [
            (torch.float32, torch.float32), (torch.float16, torch.float16), (torch.int32, torch.int32),
            (torch.bool, torch.bool), (torch.int64, torch.int32), (torch.float64, torch.float32),
            (torch.uint8, torch.uint8), (torch.int8, torch.int8), (torch.int16, torch.int16),
        ],
    )  # fmt: skip
    def test_an_input_that_passes_through(self, host: torch.dtype, returned: torch.dtype) -> None:
        x = torch.tensor([0, 1, 1, 0]).to(host)
        out = inference(identity("x"), quiet().deviceIterations(2))(x)[0]
        assert out.dtype is returned
        assert out.tolist() == x.tolist()
        assert out.data_ptr() != x.data_ptr()

    def test_bfloat16_comes_back_as_a_float_type_that_the_device_has(self) -> None:
        out = inference(identity("x"))(torch.ones(2, dtype=torch.bfloat16))[0]
        assert out.dtype in (torch.float32, torch.float16)

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
    def test_other_types_are_refused(self, dtype: torch.dtype) -> None:
        with pytest.raises(poptorch.Error, match="Unsupported input type"):
            inference(identity("x"))(torch.ones(2).to(dtype))

    def test_large_integers_are_cut_to_32_bits(self) -> None:
        out = inference(identity("x"))(torch.tensor([2**33 + 5]))[0]
        assert out.tolist() == [5]

    @pytest.mark.parametrize(
        ("compute", "dtype"),
        [
            (lambda x: x.argmax(), torch.int32), (lambda x: (x > 0).sum(), torch.int32),
            (lambda x: x.max(0).indices, torch.int32), (lambda x: torch.randperm(4), torch.int32),
            (lambda x: torch.randint(0, 9, (3,)), torch.int32), (lambda x: x.double(), torch.float32),
            (lambda x: torch.arange(3), torch.int32),
        ],
    )  # fmt: skip
    def test_results_are_never_64_bits_wide(self, compute: Any, dtype: torch.dtype) -> None:
        class Computes(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return compute(x)

        x = torch.tensor([1.0, 4.0, 2.0, -1.0])
        assert inference(Computes())(x).dtype is dtype

    def test_a_warning_mentions_the_lost_range_once(self, caplog: pytest.LogCaptureFixture) -> None:
        class Index(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.argmax(-1)

        executor = inference(Index())
        for _ in range(2):
            assert executor(torch.eye(3)).tolist() == [0, 1, 2]
        assert caplog.text.count("lose their range") == 1

    def test_small_integers_and_a_cast_in_forward_are_the_usual_pattern(self) -> None:
        class Normalise(nn.Module):
            def forward(self, image: Tensor) -> Tensor:
                return image.half() / 255

        image = torch.tensor([0, 51, 255], dtype=torch.uint8)
        out = inference(Normalise())(image)
        assert out.dtype is torch.float16
        torch.testing.assert_close(out, (image.float() / 255).half())
