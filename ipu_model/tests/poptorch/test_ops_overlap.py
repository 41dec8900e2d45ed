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
def test_other_modes_change_no_value_either(function: Any, mode: OverlapMode) -> None:
    assert torch.equal(on_device(through(function, mode), sharded())(X), on_device(lambda m, x: m.linear(x))(X))


@pytest.mark.parametrize("mode", OVERLAPPING)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_overlap_needs_io_tiles(function: Any, mode: OverlapMode) -> None:
    options = quiet_options().setExecutionStrategy(poptorch.ShardedExecution())
    with pytest.raises(poptorch.Error, match=r"No IO tiles allocated.*numIOTiles\(32\)"):
        on_device(through(function, mode), options)(X)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("output", [poptorch.OutputMode.Final, poptorch.OutputMode.EveryN])
def test_overlap_needs_an_output_mode_that_returns_or_sums_everything(
    function: Any, output: poptorch.OutputMode
) -> None:
    forward = through(function, OverlapMode.OverlapAccumulationLoop)
    with pytest.raises(poptorch.Error, match=rf"Unsupported output mode {output.name}.*OutputMode\.All"):
        on_device(forward, sharded().outputMode(output, 1))(X)
    assert on_device(forward, sharded().outputMode(poptorch.OutputMode.Sum))(X).shape == (2, 4)


@pytest.mark.parametrize("mode", OverlapMode)
def test_the_output_form_takes_only_tensors_that_are_returned(mode: OverlapMode) -> None:
    def inside(model: Any, x: Tensor) -> Tensor:
        return poptorch.set_overlap_for_output(model.linear(x), mode) * 2

    def unused(model: Any, x: Tensor) -> Tensor:
        poptorch.set_overlap_for_output(x * 2, mode)
        return model.linear(x)

    for forward in (inside, unused, lambda m, x: x + len(poptorch.set_overlap_for_output([torch.Tensor()], mode))):
        with pytest.raises(poptorch.Error, match="not a tensor output to the model"):
            on_device(forward, sharded())(X)


@pytest.mark.parametrize("mode", OverlapMode)
def test_a_marked_output_must_be_returned_only_once(mode: OverlapMode) -> None:
    def twice(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = poptorch.set_overlap_for_output(model.linear(x), mode)
        return y, y

    with pytest.raises(poptorch.Error, match="returned twice"):
        on_device(twice, sharded())(X)


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


@pytest.mark.parametrize("mode", OVERLAPPING)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_pipelined_strategy_is_refused_even_on_one_ipu(function: Any, mode: OverlapMode) -> None:
    with pytest.raises(poptorch.Error, match=r"not supported with poptorch\.PipelinedExecution.*ShardedExecution"):
        on_device(lambda m, x: function(x, mode))(X)


@pytest.mark.parametrize("mode", OverlapMode)
def test_the_input_form_takes_only_inputs_of_the_model(mode: OverlapMode) -> None:
    for not_an_input in (lambda m, x: x + 1, lambda m, x: m.linear.weight, lambda m, x: torch.zeros(2)):
        with pytest.raises(poptorch.Error, match="not a tensor input to the model"):
            on_device(lambda m, x, f=not_an_input: poptorch.set_overlap_for_input(f(m, x), mode), sharded())(X)


@pytest.mark.parametrize("mode", OverlapMode)
@pytest.mark.parametrize(
    "forward",
    [
        lambda x, mark: x * 2 + mark(x),
        lambda x, mark: mark(x) + x,
        lambda x, mark: (mark(x) * 2, x),
        lambda x, mark: mark(x) + poptorch.set_overlap_for_input(x, OverlapMode.NoOverlap),
    ],
    ids=["op before", "op after", "output", "second mark"],
)
def test_the_input_form_must_be_the_only_op_on_its_input(mode: OverlapMode, forward: Any) -> None:
    def mark(x: Tensor) -> Tensor:
        return poptorch.set_overlap_for_input(x, mode)

    with pytest.raises(poptorch.Error, match="must be the only op applied to an input"):
        on_device(lambda m, x: forward(x, mark), sharded())(X)


def test_what_the_input_form_returns_may_be_used_often_and_changed_in_place() -> None:
    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        x = poptorch.set_overlap_for_input(x, OverlapMode.OverlapDeviceIterationLoop)
        twice = x + x
        return twice, x.add_(1)

    twice, changed = on_device(forward, sharded())(X.clone())
    assert torch.equal(twice, 2 * X)
    assert torch.equal(changed, X + 1)
