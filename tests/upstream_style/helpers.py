"""What tests in PopTorch's style share: log levels for a while, a reader of logs, models with a loss."""

from __future__ import annotations

import functools
import os
from typing import Any, Callable

import pytest
import torch

import poptorch


class overridePoptorchLogLevel:
    """Logs from `level` on inside a `with` body or a decorated test."""

    def __init__(self, level: str) -> None:
        self._level = level

    def __enter__(self) -> None:
        poptorch.setLogLevel(self._level)

    def __exit__(self, *exception: object) -> None:
        poptorch.setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL", "WARN"))

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def in_level(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return in_level


def printCapfdOnExit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Show what a test that reads its output has captured when it ends."""

    @functools.wraps(function)
    def shown(*args: Any, capfd: pytest.CaptureFixture[str], **kwargs: Any) -> Any:
        try:
            return function(*args, capfd=capfd, **kwargs)
        finally:
            captured = capfd.readouterr()
            with capfd.disabled():
                print(captured.out, captured.err)

    return shown


class LogChecker:
    """What has been written to stdout and stderr so far, line by line."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._lines = "".join(capfd.readouterr()).split("\n")

    def assert_contains(self, *texts: str) -> None:
        assert any(all(text in line for text in texts) for line in self._lines), f"{texts} not in {self._lines}"


class ModelWithLoss(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self._model = model
        self._loss = loss

    def forward(self, args: Any, loss_inputs: Any) -> Any:
        output = self._model(args)
        return output, self._loss(output, loss_inputs)


def trainingModelWithLoss(
    model: torch.nn.Module, loss: Callable[..., Any], options: Any = None, optimizer: Any = None
) -> poptorch.PoplarExecutor:
    return poptorch.trainingModel(ModelWithLoss(model, loss), options=options, optimizer=optimizer)
