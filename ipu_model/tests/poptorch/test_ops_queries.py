"""Where a program runs (execution reference, section 15.1)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from function_models import FunctionModel, in_training, on_device
from torch import Tensor

import poptorch

X = torch.ones(2, 4)


def answers(seen: list[bool]) -> Any:
    """Return a forward that notes, in a function it calls, where it believes to run."""

    def ask() -> None:
        seen.append(poptorch.isRunningOnIpu())

    def forward(model: Any, x: Tensor) -> Tensor:
        ask()
        return poptorch.identity_loss(model.linear(x), "sum")

    return forward


@pytest.mark.parametrize("wrap", [on_device, in_training])
def test_true_while_a_wrapped_forward_is_traced_and_false_around_it(wrap: Any) -> None:
    seen: list[bool] = []
    executor = wrap(answers(seen))
    assert not poptorch.isRunningOnIpu()
    executor(X)
    executor(X)
    assert seen == [True]
    assert not poptorch.isRunningOnIpu()


def test_false_when_the_plain_module_is_called() -> None:
    seen: list[bool] = []
    FunctionModel(answers(seen))(X)
    assert seen == [False]


def test_false_after_an_exception_in_forward() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        on_device(forward)(X)
    assert not poptorch.isRunningOnIpu()
    assert not poptorch.poptorch_core.isCompilingWithDispatcher()


def test_there_is_no_hardware() -> None:
    assert poptorch.ipuHardwareIsAvailable() is False
    assert poptorch.ipuHardwareIsAvailable(num_ipus=4) is False
    with pytest.raises(AssertionError, match="No IPU hardware available"):
        poptorch.ipuHardwareVersion()
