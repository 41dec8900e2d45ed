"""`for_loop` and `cond` (execution reference, section 9)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from function_models import on_device, quiet_options
from torch import Tensor

import poptorch

X = torch.arange(1.0, 9.0).reshape(2, 4)
TRUE, FALSE = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])


class TestLoop:
    @pytest.mark.parametrize("count", [0, 1, 2, 6])
    def test_each_iteration_gets_what_the_last_one_returned(self, count: int) -> None:
        fibonacci = on_device(lambda m, a, b: poptorch.for_loop(count, lambda p, q: (q, p + q), [a, b]))
        a, b = X, X + 1
        result = fibonacci(a, b)
        for _ in range(count):
            a, b = b, a + b
        assert isinstance(result, list)
        assert poptorch.testing.allclose(result, [a, b])

    @pytest.mark.parametrize("wrap", [lambda t: t, lambda t: [t], lambda t: (t,)])
    def test_the_body_may_return_a_tensor_a_list_or_a_tuple(self, wrap: Any) -> None:
        (result,) = on_device(lambda m, x: poptorch.for_loop(3, lambda t: wrap(t * 2), [x]))(X)
        assert torch.equal(result, X * 8)

    def test_half_precision_rounds_once_in_each_iteration(self) -> None:
        half = torch.linspace(-2, 2, 8).reshape(2, 4).half()
        (result,) = on_device(lambda m, x: poptorch.for_loop(3, lambda t: t * 1.1, [x]))(half)
        expected = half
        for _ in range(3):
            expected = (expected.float() * 1.1).half()
        assert result.dtype == torch.float16
        assert torch.equal(result, expected)

    def test_the_body_reads_outer_tensors_parameters_and_layers(self) -> None:
        def forward(model: Any, x: Tensor) -> list[Tensor]:
            outer = x * 10
            return poptorch.for_loop(2, lambda t: model.linear(t) + outer + model.linear.bias, [x])

        executor = on_device(forward)
        model, expected = executor.model, X
        with torch.no_grad():
            for _ in range(2):
                expected = model.linear(expected) + X * 10 + model.linear.bias
        assert torch.allclose(executor(X)[0], expected)

    def test_in_place_ops_in_the_body_stay_inside_and_others_are_as_in_eager_pytorch(self) -> None:
        def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            y = (x + 0).mul_(2)
            (looped,) = poptorch.for_loop(3, lambda t: t.add_(1), [y])
            looped.add_(100)
            y.sub_(1)
            return y, looped

        y, looped = on_device(forward)(X)
        assert torch.equal(y, X * 2 - 1)
        assert torch.equal(looped, X * 2 + 103)

    def test_loops_may_be_on_different_ipus(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with poptorch.Block("a", ipu_id=0):
                (x,) = poptorch.for_loop(3, lambda t: t + 1, [x])
            with poptorch.Block("b", ipu_id=1):
                (x,) = poptorch.for_loop(3, lambda t: t * 2, [x])
            return x

        assert torch.equal(on_device(forward, quiet_options().deviceIterations(2))(X), (X + 3) * 8)

    def test_on_the_cpu_the_body_runs_once_and_inputs_are_copies(self) -> None:
        original = X.clone()
        (result,) = poptorch.for_loop(5, lambda t: t.mul_(2), [original])
        assert torch.equal(result, X * 2)
        assert torch.equal(original, X)


def never() -> Tensor:
    raise AssertionError("the other branch ran")


def cond(c: Tensor, *bodies: Any) -> Any:
    return poptorch.cond(c.sum() > 0, *bodies)


# Branches as functions of the input, and what they return for a true and a false condition.
CONDITIONS: dict[str, tuple[Any, list[Tensor], list[Tensor]]] = {
    "with inputs": (lambda c, x: cond(c, lambda a: a + 1, [x], lambda a, b: a * b, [x, x]), [X + 1], [X * X]),
    "outer tensors": (
        lambda c, x: cond(c, lambda: [x * 1, x * 3], [], lambda: (x * 2, x * 6), []), [X, X * 3], [X * 2, X * 6],
    ),
    "the shape of the else branch": (
        lambda c, x: cond(c, lambda: x, [], lambda: -x.reshape(4, 2), []), [X.reshape(4, 2)], [-X.reshape(4, 2)],
    ),
    "infinities of the other branch": (lambda c, x: cond(c, lambda: x, [], lambda: x / 0, []), [X], [X / 0]),
}  # fmt: skip


class TestCondition:
    @pytest.mark.parametrize("name", CONDITIONS)
    def test_the_branch_is_chosen_at_run_time(self, name: str) -> None:
        branches, then, otherwise = CONDITIONS[name]
        executor = on_device(lambda m, c, x: branches(c, x))
        for condition, expected in ((TRUE, then), (FALSE, otherwise)):
            result = executor(condition, X)
            assert isinstance(result, list)
            assert [torch.equal(a, b) for a, b in zip(result, expected, strict=True)] == [True] * len(expected)

    def test_on_the_cpu_it_evaluates_the_chosen_branch_only(self) -> None:
        assert cond(TRUE, lambda: X + 1, [], never, [])[0].tolist() == (X + 1).tolist()
        assert cond(FALSE, never, [], lambda a, b: a * b, [X, X])[0].tolist() == (X * X).tolist()

    @pytest.mark.parametrize(("outer", "inner", "factor"), [(TRUE, TRUE, 2), (TRUE, FALSE, 3), (FALSE, TRUE, 5)])
    def test_conditions_nest_and_bodies_are_used_again(self, outer: Tensor, inner: Tensor, factor: int) -> None:
        def times(number: int) -> Any:
            return lambda t: t * number

        def forward(model: Any, a: Tensor, b: Tensor, x: Tensor) -> list[Tensor]:
            return cond(a, lambda t: cond(b, times(2), [t], times(3), [t]), [x], times(5), [x])

        assert torch.equal(on_device(forward)(outer, inner, X)[0], X * factor)

    def test_in_place_ops_in_a_body_stay_inside(self) -> None:
        def forward(model: Any, c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x + 0
            (result,) = cond(c, lambda t: t.add_(1), [y], lambda t: t.mul_(7), [y])
            return y, result

        y, result = on_device(forward)(FALSE, X)
        assert torch.equal(y, X)
        assert torch.equal(result, X * 7)
