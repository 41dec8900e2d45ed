"""Ctrl-C at any moment of a compilation or a call: the program goes on, and nothing is half done.

The signal is a real one; the processor time at which it comes sweeps over the whole of what is interrupted.
"""

from __future__ import annotations

import copy
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from executor_support import quiet, training
from fuzz.leftovers import Leftovers
from torch import Tensor, nn

import poptorch

X = torch.linspace(-1, 1, 24).reshape(8, 3)
MOMENTS = 8


class Net(nn.Module):
    """A convolution's worth of ops, with a buffer that changes; it can press Ctrl-C itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.press: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.norm(self.first(x)))
        self.press()
        out = self.second(hidden)
        return out, poptorch.identity_loss(out * out, "mean")


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Send this process a SIGINT once it has used so much processor time."""
    before = signal.signal(signal.SIGPROF, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def seconds_of(action: Callable[[], Any]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def moments(duration: float) -> list[float]:
    return [duration * (number + 1) / MOMENTS for number in range(MOMENTS)]


def test_compiling_can_be_interrupted_at_any_moment() -> None:
    training(Net())(X)
    duration = seconds_of(lambda: training(Net())(X))
    before = Leftovers.now()
    for moment in moments(duration):
        model = Net()
        executor = training(model)
        with suppress(KeyboardInterrupt), interrupted_after(moment):
            executor(X)
        assert before.difference() == ""
        assert executor(X)[0].shape == (8, 2)
        executor.destroy()
        assert type(model) is Net
        assert type(model.first.weight) is nn.Parameter
        assert torch.isfinite(model(X)[0]).all()


def test_an_interrupt_while_tracing_stops_at_the_next_op() -> None:
    model = Net()
    reached = []
    model.press = lambda: (signal.raise_signal(signal.SIGINT), reached.append("pressed"))
    executor = training(model)
    with pytest.raises(KeyboardInterrupt):
        executor(X)
    assert reached == ["pressed"]
    assert not executor.isCompiled()
    model.press = lambda: None
    assert training(model)(X)[0].shape == (8, 2)


def test_a_forward_that_hangs_ends_with_the_second_interrupt() -> None:
    model = Net()

    def hang() -> None:
        while True:
            signal.raise_signal(signal.SIGINT)

    model.press = hang
    executor = training(model)
    with pytest.raises(KeyboardInterrupt):
        executor(X)
    assert not executor.isCompiled()


def test_a_call_can_be_interrupted_at_any_moment_and_updates_are_whole() -> None:
    """A call's weights are those of plain PyTorch after some whole number of its updates."""
    iterations = 6
    options = quiet().deviceIterations(iterations)
    x = X[:4].repeat(iterations, 1)
    first = Net()
    executor = training(first, options.clone())
    executor(x)
    duration = seconds_of(lambda: executor(x))
    for moment in moments(duration):
        model = Net()
        executor = training(model, options.clone())
        executor.compile(x)
        with suppress(KeyboardInterrupt), interrupted_after(moment):
            executor(x)
        executor.copyWeightsToHost()
        allowed = states_after(iterations)
        weights = torch.cat([model.first.weight.detach().flatten(), model.second.weight.detach().flatten()])
        assert min(float((weights - state).abs().max()) for state in allowed) < 1e-5
        assert executor(x)[0].shape == (4, 2)
        executor.destroy()


def states_after(updates: int) -> list[Tensor]:
    """Return the weights of plain PyTorch after 0 to `updates` updates on the same rows."""
    model = copy.deepcopy(Net())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    states = []
    for _ in range(updates + 1):
        states.append(torch.cat([model.first.weight.detach().flatten(), model.second.weight.detach().flatten()]))
        optimiser.zero_grad()
        model(X[:4])[1].backward()
        optimiser.step()
    return states
