"""Errors that depend on data: a replay raises PopTorch's error class and names the op and the user's line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, inference
from torch import Tensor, nn

import poptorch
from ipu_model.source_lines import line_running, line_that_raised

X = torch.ones(3)
OUTSIDE = torch.tensor([7])


def looked_up(model: Any, tokens: Tensor) -> Tensor:
    found: Tensor = model.words(tokens)
    return found * 2


class TestDuringAReplay:
    def test_an_index_out_of_range_names_op_module_and_line_and_the_model_stays_usable(self) -> None:
        model: Any = Module(looked_up, words=nn.Embedding(3, 2))
        executor = inference(model)
        with pytest.raises(poptorch.Error) as failure:
            executor(OUTSIDE)
        text = failure.value.message
        assert text.startswith("index out of range in self (aten.embedding.default in module 'words', forward pass, ")
        assert "of looked_up in test_replay_errors.py: found: Tensor = model.words(tokens)" in text
        assert failure.value.type == "poplar_application_runtime_error"
        assert isinstance(failure.value.__cause__, IndexError)
        assert torch.equal(executor(torch.tensor([2])), 2 * model.words.weight[2:].detach())

    @pytest.mark.parametrize(
        "function",
        [
            lambda x, i: torch.gather(x, 0, i),
            lambda x, i: x[i],
            lambda x, i: F.cross_entropy(x[None], i),
            lambda x, i: (x + 1).scatter(0, i, 1.0),
            lambda x, i: x.half()[i],
            lambda x, i: torch.zeros(3).index_put_((i,), x[:1]),
        ],
    )
    def test_other_ops(self, function: Any) -> None:
        with pytest.raises(poptorch.Error, match=r"out of bounds.*\(aten\..* of <lambda> in test_replay_errors.py"):
            inference(Module(lambda model, *args: function(*args)))(X, OUTSIDE)

    def test_the_exception_of_a_cpu_op_is_the_programs_own(self) -> None:
        def fails(x: Tensor) -> Tensor:
            return {}[x.sum().item()] if x.sum() > 0 else x

        with pytest.raises(KeyError, match="3"):
            inference(Module(lambda model, x: model.op(x), op=poptorch.CPU(fails, "fails")))(X)


class TestLines:
    def test_the_line_that_is_running_is_the_innermost_of_the_users(self) -> None:
        seen = []

        def asks(model: Any, x: Tensor) -> Tensor:
            seen.append(line_running())
            return x

        nn.Sequential(Module(asks))(X)
        (line,) = seen
        assert line is not None
        assert (line.function, line.file) == ("asks", __file__)
        assert str(line).endswith("of asks in test_replay_errors.py: seen.append(line_running())")

    def test_the_line_that_raised(self) -> None:
        with pytest.raises(RuntimeError) as failure:
            F.linear(X, X[:2])
        assert "F.linear(X, X[:2])" in str(line_that_raised(failure.value))


def squares_of(model: Any, x: Tensor) -> Tensor:
    squares = x * x
    return squares.sum()


@pytest.mark.parametrize("value", [None, "", "0", "1"])
def test_the_first_op_whose_half_precision_results_were_clipped_is_named_if_that_is_asked_for(
    value: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv("IPU_MODEL_REPORT_CLIPPING", value)
    large = torch.tensor([300.0, 1.0], dtype=torch.float16)  # 300 * 300 is beyond 65504
    assert inference(Module(squares_of))(large).item() == 65504.0
    said = [record.getMessage() for record in caplog.records if record.name.startswith("ipu_model")]
    assert len(said) == (1 if value == "1" else 0)
    for message in said:
        assert "clipped to +-65504: 1 of 2 values (aten.mul.Tensor" in message
        assert "of squares_of in test_replay_errors.py: squares = x * x)" in message
