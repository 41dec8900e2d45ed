"""Overlapped host transfers (execution reference, section 8.3): only `NoOverlap` works in this version."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
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


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("mode", OverlapMode)
@pytest.mark.parametrize(
    "value", [X, (X, 1), [X, [X, None]], {"a": X, "b": ("text", X)}, OrderedDict(z=X), Pair(X, 2), None]
)
def test_on_the_cpu_every_mode_returns_the_same_structure(function: Any, mode: OverlapMode, value: Any) -> None:
    assert function(value, mode) is value


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("mode", ["no_overlap", 0, None])
def test_a_mode_that_is_no_overlap_mode_is_refused(function: Any, mode: Any) -> None:
    with pytest.raises(AssertionError, match=r"poptorch\.OverlapMode"):
        function(X, mode)


def test_no_overlap_imposes_no_strategy_and_changes_no_value() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        y = model.linear(poptorch.set_overlap_for_input(x, OverlapMode.NoOverlap))
        return poptorch.set_overlap_for_output(y, OverlapMode.NoOverlap)

    assert torch.equal(on_device(forward)(X), on_device(lambda m, x: m.linear(x))(X))


@pytest.mark.parametrize("mode", OVERLAPPING)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_other_modes_are_refused_by_name_under_a_sharded_strategy(function: Any, mode: OverlapMode) -> None:
    with pytest.raises(poptorch.Error, match=rf"poptorch\.{function.__name__} with .*{mode.name} is not supported"):
        on_device(lambda m, x: function(x, mode), sharded())(X)


@pytest.mark.parametrize("mode", OVERLAPPING)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_pipelined_strategy_is_refused_even_on_one_ipu(function: Any, mode: OverlapMode) -> None:
    with pytest.raises(poptorch.Error, match=r"not supported with poptorch\.PipelinedExecution.*ShardedExecution"):
        on_device(lambda m, x: function(x, mode))(X)


@pytest.mark.parametrize("mode", OverlapMode)
def test_the_input_form_wants_an_input_of_the_model(mode: OverlapMode) -> None:
    for not_an_input in (lambda m, x: x + 1, lambda m, x: m.linear.weight, lambda m, x: torch.zeros(2)):
        with pytest.raises(poptorch.Error, match="not a tensor input to the model"):
            on_device(lambda m, x, f=not_an_input: poptorch.set_overlap_for_input(f(m, x), mode), sharded())(X)


@pytest.mark.parametrize("mode", OverlapMode)
def test_the_input_form_wants_to_be_the_first_op_on_its_input(mode: OverlapMode) -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        y = x * 2
        return poptorch.set_overlap_for_input(x, mode) + y

    with pytest.raises(poptorch.Error, match="must be the only op applied to an input"):
        on_device(forward, sharded())(X)
