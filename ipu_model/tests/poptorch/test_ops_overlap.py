"""Overlapped host transfers (execution reference, section 8.3)."""

from __future__ import annotations

import logging
from collections import namedtuple
from typing import Any

import pytest
import torch
from function_models import on_device, quiet_options
from torch import Tensor

import poptorch
from poptorch import OverlapMode

X = torch.arange(8.0).reshape(2, 4)
Pair = namedtuple("Pair", ["left", "right"])
OVERLAPPING = [OverlapMode.OverlapAccumulationLoop, OverlapMode.OverlapDeviceIterationLoop]
FUNCTIONS = [poptorch.set_overlap_for_input, poptorch.set_overlap_for_output]


def sharded() -> poptorch.Options:
    options = quiet_options()
    options.setExecutionStrategy(poptorch.ShardedExecution())
    options.TensorLocations.numIOTiles(32)
    return options


def through(function: Any, mode: OverlapMode) -> Any:
    """Return a forward that applies a linear layer, with `function` on its input or its output."""

    def forward(model: Any, x: Tensor) -> Tensor:
        if function is poptorch.set_overlap_for_input:
            return model.linear(function(x, mode))
        return function(model.linear(x), mode)

    return forward


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("mode", OverlapMode)
def test_on_the_cpu_every_mode_returns_its_argument_itself(function: Any, mode: OverlapMode) -> None:
    for value in (X, [X, [X, None]], {"a": X, "b": ("text", X)}, None):
        assert function(value, mode) is value


def test_no_overlap_imposes_no_strategy_and_changes_no_value() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        y = model.linear(poptorch.set_overlap_for_input(x, OverlapMode.NoOverlap))
        return poptorch.set_overlap_for_output(y, OverlapMode.NoOverlap)

    assert torch.equal(on_device(forward)(X), on_device(lambda m, x: m.linear(x))(X))


@pytest.mark.parametrize("mode", OVERLAPPING)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_other_modes_change_no_value_either(function: Any, mode: OverlapMode) -> None:
    assert torch.equal(on_device(through(function, mode), sharded())(X), on_device(lambda m, x: m.linear(x))(X))


def test_a_marked_output_may_have_other_uses() -> None:
    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = model.linear(x)
        poptorch.set_overlap_for_output(y, OverlapMode.OverlapDeviceIterationLoop)
        return y, y + 1

    y, more = on_device(forward, sharded())(X)
    assert torch.equal(y + 1, more)


def test_the_log_names_what_overlapping_switches_on(caplog: pytest.LogCaptureFixture) -> None:
    """Options reference 12.2, derived settings."""
    with caplog.at_level(logging.DEBUG, logger="poptorch:cpp"):
        on_device(through(poptorch.set_overlap_for_input, OverlapMode.OverlapAccumulationLoop), sharded())(X)
    assert "useHostCopyOps set to value 1" in caplog.text
    assert "enableExplicitMainLoops set to value 1" in caplog.text


def test_what_the_input_form_returns_may_be_used_often_and_changed_in_place() -> None:
    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        x = poptorch.set_overlap_for_input(x, OverlapMode.OverlapDeviceIterationLoop)
        twice = x + x
        return twice, x.add_(1)

    twice, changed = on_device(forward, sharded())(X.clone())
    assert torch.equal(twice, 2 * X)
    assert torch.equal(changed, X + 1)
