"""`dynamic_slice` and `dynamic_update` (execution reference, section 11)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from function_models import in_training, on_device
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import poptorch

X = torch.arange(72.0).reshape(2, 6, 6)


def start_at(position: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([position], dtype=dtype)


def slicing(dim: int, size: int, step: int) -> Any:
    return lambda m, x, start: poptorch.dynamic_slice(x, dim, start, size, step)


def updating(dim: int, size: int) -> Any:
    return lambda m, x, src, start: poptorch.dynamic_update(x, src, dim, start, size)


class TestSlice:
    @given(
        dim=st.sampled_from([1, 2, -1]),
        size=st.sampled_from([1, 2, 3, 6]),
        step=st.integers(1, 4),
        data=st.data(),
    )
    def test_it_is_the_python_slice_at_a_start_known_at_run_time(
        self, dim: int, size: int, step: int, data: st.DataObject
    ) -> None:
        executor = on_device(slicing(dim, size, step))
        executor.compile(X, start_at(0))
        start = data.draw(st.integers(0, 6 - size))
        expected = X.transpose(0, dim)[start : start + size : step].transpose(0, dim)
        assert torch.equal(executor(X, start_at(start)), expected)

    @pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
    def test_on_the_cpu_every_integer_start_works_and_device_rules_do_not_apply(self, dtype: torch.dtype) -> None:
        result = poptorch.dynamic_slice(X, 1, start_at(1, dtype), 4, 3)
        assert torch.equal(result, X[:, 1:5:3])

    def test_the_result_is_a_copy(self) -> None:
        tensor = X.clone()
        poptorch.dynamic_slice(tensor, 1, start_at(0), 2, 1).zero_()
        assert torch.equal(tensor, X)

    @pytest.mark.parametrize(("size", "step", "fragment"), [
        (0, 1, "of a slice must be different"),
        (-2, 1, "must not be negative"),
        (2, 0, "step of a slice must be at least 1"),
        (2, -1, "step of a slice must be at least 1"),
        (4, 1, "must be a factor of the slicing dimension"),
    ])  # fmt: skip
    def test_the_rules_of_the_device_are_checked_when_traced(self, size: int, step: int, fragment: str) -> None:
        with pytest.raises(poptorch.Error, match=fragment):
            on_device(slicing(1, size, step))(X, start_at(0))

    @pytest.mark.parametrize("wrong", [
        {"tensor": [1, 2]}, {"dim": 1.0}, {"start": 1}, {"size": "2"}, {"step": None},
        {"start": torch.tensor([1.0])}, {"start": torch.tensor([1, 2])}, {"dim": 3},
    ], ids=str)  # fmt: skip
    def test_arguments_of_other_types_are_refused(self, wrong: dict[str, Any]) -> None:
        arguments = {"tensor": X, "dim": 1, "start": start_at(0), "size": 2, "step": 1, **wrong}
        with pytest.raises(poptorch.Error, match=next(iter(wrong)) + "|dimension 3"):
            poptorch.dynamic_slice(**arguments)

    def test_a_slice_that_leaves_the_tensor_fails_when_it_runs(self) -> None:
        executor = on_device(slicing(1, 2, 1))
        executor.compile(X, start_at(0))
        with pytest.raises((RuntimeError, IndexError), match="out of"):
            executor(X, start_at(5))

    def test_training_refuses_it_by_name(self) -> None:
        def forward(model: Any, x: Tensor, start: Tensor) -> Tensor:
            return poptorch.identity_loss(poptorch.dynamic_slice(x, 1, start, 2, 1), "sum")

        with pytest.raises(poptorch.Error, match=r"poptorch\.dynamic_slice\(\) is only supported in inference"):
            in_training(forward)(X, start_at(0))


class TestUpdate:
    @given(dim=st.sampled_from([1, 2, -1]), size=st.integers(1, 6), data=st.data())
    def test_it_is_a_copy_with_the_slice_replaced(self, dim: int, size: int, data: st.DataObject) -> None:
        shape = list(X.shape)
        shape[dim] = size
        src = -torch.ones(shape)
        executor = on_device(updating(dim, size))
        executor.compile(X, src, start_at(0))
        start = data.draw(st.integers(0, 6 - size))
        expected = X.clone()
        expected.transpose(0, dim)[start : start + size] = -1
        host = X.clone()
        assert torch.equal(executor(host, src, start_at(start)), expected)
        assert torch.equal(host, X)

    @pytest.mark.parametrize(("src", "fragment"), [
        (torch.ones(2, 2), "same dimensionality"),
        (torch.ones(2, 2, 6).int(), "same dtype"),
        (torch.ones(2, 3, 6), "src must have the shape"),
    ])  # fmt: skip
    def test_the_source_must_fit(self, src: Tensor, fragment: str) -> None:
        with pytest.raises(poptorch.Error, match=fragment):
            poptorch.dynamic_update(X, src, 1, start_at(0), 2)
        with pytest.raises(poptorch.Error, match=fragment):
            on_device(updating(1, 2))(X, src, start_at(0))

    @pytest.mark.parametrize(("size", "fragment"), [(0, "must be different"), (-1, "must not be negative")])
    def test_the_rules_of_the_device_are_checked_when_traced(self, size: int, fragment: str) -> None:
        with pytest.raises(poptorch.Error, match=fragment):
            on_device(updating(1, size))(X, X, start_at(0))

    def test_a_size_needs_not_divide_the_dimension(self) -> None:
        result = on_device(updating(1, 4))(X, torch.zeros(2, 4, 6), start_at(2))
        assert torch.equal(result, torch.cat([X[:, :2], torch.zeros(2, 4, 6)], dim=1))

    def test_a_slice_that_leaves_the_tensor_fails_when_it_runs(self) -> None:
        executor = on_device(updating(1, 4))
        src = torch.zeros(2, 4, 6)
        executor.compile(X, src, start_at(0))
        with pytest.raises((RuntimeError, IndexError), match="out of"):
            executor(X, src, start_at(3))
