"""Errors that depend on data: a replay raises PopTorch's error class and names the op and the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import inference, quiet
from torch import Tensor, nn

import poptorch
from ipu_model.source_lines import SourceLine, line_running, line_that_raised


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.words(tokens)
        return found * 2


class Runs(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


X = torch.ones(3)
OUTSIDE = torch.tensor([7])


class TestDuringAReplay:
    def test_an_index_out_of_range_names_op_module_and_line(self) -> None:
        executor = inference(Looks())
        with pytest.raises(poptorch.Error) as failure:
            executor(OUTSIDE)
        text = failure.value.message
        assert text.startswith("index out of range in self (aten.embedding.default in module 'words', forward pass, ")
        assert "of forward in test_replay_errors.py: found = self.words(tokens)" in text
        assert failure.value.type == "poplar_application_runtime_error"
        assert isinstance(failure.value.__cause__, IndexError)

    def test_the_model_stays_usable(self) -> None:
        model = Looks()
        executor = inference(model)
        with pytest.raises(poptorch.Error):
            executor(OUTSIDE)
        assert torch.equal(executor(torch.tensor([2])), 2 * model.words.weight[2:].detach())

    @pytest.mark.parametrize(
        "function",
        [
            lambda x, i: torch.gather(x, 0, i), lambda x, i: x[i], lambda x, i: F.cross_entropy(x[None], i),
            lambda x, i: (x + 1).scatter(0, i, 1.0), lambda x, i: x.half()[i],
            lambda x, i: torch.zeros(3).index_put_((i,), x[:1]),
        ],
        ids=["gather", "index", "a target", "scatter", "half", "in place"],
    )  # fmt: skip
    def test_other_ops(self, function: Any) -> None:
        with pytest.raises(poptorch.Error, match=r"out of bounds.*\(aten\..* of <lambda> in test_replay_errors.py"):
            inference(Runs(function))(X, OUTSIDE)

    def test_the_exception_of_a_cpu_op_is_the_programs_own(self) -> None:
        def fails(x: Tensor) -> Tensor:
            if x.sum() > 0:
                raise LookupError("my own words")
            return x

        op = poptorch.CPU(fails, "fails")
        with pytest.raises(LookupError, match="my own words"):
            inference(Runs(op))(X)


def test_global_hooks_of_the_program_see_its_own_modules_only() -> None:
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        executor = inference(nn.Sequential(nn.Linear(3, 2)), quiet())
        executor(X[None])
        executor(X[None])
    finally:
        handle.remove()
    assert seen == ["Linear", "Sequential"]


class TestLines:
    def test_the_line_that_is_running_is_the_innermost_of_the_users(self) -> None:
        seen = []

        class Asks(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                seen.append(line_running())
                return x

        nn.Sequential(Asks())(X)
        (line,) = seen
        assert isinstance(line, SourceLine)
        assert (line.function, line.file) == ("forward", __file__)
        assert str(line).endswith("of forward in test_replay_errors.py: seen.append(line_running())")

    def test_the_line_that_raised(self) -> None:
        try:
            F.linear(X, X[:2])
        except RuntimeError as error:
            line = line_that_raised(error)
        assert line is not None
        assert "F.linear(X, X[:2])" in str(line)
