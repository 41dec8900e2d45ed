"""Recurrent layers: products over all steps, and a loop over the steps."""

from __future__ import annotations

import pytest
import torch
from cost_support import costed
from torch import Tensor, nn

from ipu_model.step import Phase

STEPS, ROWS, INPUTS, STATES = 7, 3, 6, 8


class Output(nn.Module):
    """The output of a recurrent network, its input multiplied by a weight: the input has a gradient."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.scale = network, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.network(x * self.scale)[0]
        return output


class Unrolled(nn.Module):
    """The same layer as a loop over a cell."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> tuple[Tensor]:
        state, outputs = None, []
        for step in x.unbind(0):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return (torch.stack(outputs),)


X = torch.zeros(STEPS, ROWS, INPUTS)


GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}
CELLS = {nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell, nn.RNN: nn.RNNCell}


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("directions", [1, 2])
def test_arithmetic_is_that_of_the_gates(kind: type[nn.RNNBase], directions: int) -> None:
    """G x (I + H) multiply-adds for a sequence and step; a first state of zeros needs no gradient."""
    found = costed(Output(kind(INPUTS, STATES, bidirectional=directions == 2)), X)
    gates = GATES[kind] * STATES
    forward = directions * STEPS * ROWS * 2 * gates * (INPUTS + STATES)
    first_step = directions * ROWS * 2 * gates * STATES
    assert sum(op.work.flops for op in found.of(phase=Phase.FORWARD)) == forward
    assert sum(op.work.flops for op in found.of(phase=Phase.BACKWARD)) == 2 * forward - first_step


def test_a_projection_adds_its_products_and_makes_those_of_the_states_smaller() -> None:
    """4 H x (I + P) + H x P multiply-adds for a sequence and step."""
    outputs = 5
    found = costed(Output(nn.LSTM(INPUTS, STATES, proj_size=outputs)), X)
    forward = STEPS * ROWS * 2 * (4 * STATES * (INPUTS + outputs) + STATES * outputs)
    first_step = ROWS * 2 * 4 * STATES * outputs
    assert sum(op.work.flops for op in found.of(phase=Phase.FORWARD)) == forward
    assert sum(op.work.flops for op in found.of(phase=Phase.BACKWARD)) == 2 * forward - first_step


@pytest.mark.parametrize("kind", CELLS)
def test_it_does_the_arithmetic_of_the_cells_in_a_loop(kind: type[nn.RNNBase]) -> None:
    layer = costed(Output(kind(INPUTS, STATES)), X)
    cells = costed(Output(Unrolled(CELLS[kind](INPUTS, STATES))), X)
    # The cells' loop also multiplies the first state of zeros for the weight's gradient, and so does the layer.
    assert layer.flops == cells.flops


def test_the_loops_repeat_once_for_each_step_and_what_is_outside_does_not() -> None:
    ops = costed(Output(nn.LSTM(INPUTS, STATES)), X).ops
    repeats = {(op.target, op.part): op.work.repeats for op in ops if "lstm" in op.target}
    assert repeats["ipu_model.lstm.default", "steps"] == STEPS
    assert repeats["ipu_model.lstm_backward.default", "steps"] == STEPS
    assert {repeats[key] for key in repeats if key[1] != "steps"} == {1}


def test_the_gradient_of_an_input_without_one_costs_nothing() -> None:
    parts = {op.part for op in costed(nn.Sequential(nn.LSTM(INPUTS, STATES), First()), X).ops}
    assert "weight gradient" in parts
    assert "data gradient" not in parts


class First(nn.Module):
    """The first of several results."""

    def forward(self, results: tuple[Tensor, ...]) -> Tensor:
        return results[0]
