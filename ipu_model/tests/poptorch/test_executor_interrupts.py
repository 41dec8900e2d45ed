"""Ctrl-C at any moment of a compilation or a call: the program goes on, and nothing is half done.

The signal is a real one; the processor time at which it comes sweeps over the whole of what is interrupted. So is the
stop button of a notebook: the cell ends, and the next one works.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from executor_support import Module, X, in_plain_pytorch, quiet, training, with_loss
from fuzz.leftovers import Leftovers
from torch import Tensor, nn


def network(press: Callable[[], Any] = lambda: None) -> Any:
    """Return a network with a buffer that changes; it can press Ctrl-C itself."""

    def forward(model: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(model.norm(model.first(x)))
        model.press()
        return model.second(hidden) ** 2

    torch.manual_seed(0)
    layers = {"first": nn.Linear(3, 4), "norm": nn.BatchNorm1d(4), "second": nn.Linear(4, 2)}
    return with_loss(forward, "mean", press=press, **layers)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Send this process a SIGINT once it has used so much processor time."""
    before = signal.signal(signal.SIGPROF, lambda number, frame: interrupt())
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def moments(action: Callable[[], Any]) -> list[float]:
    """Return eight moments from the start to the end of `action`, in seconds of processor time."""
    start = time.process_time()
    action()
    return [(time.process_time() - start) * (number + 1) / 8 for number in range(8)]


def test_compiling_can_be_interrupted_at_any_moment() -> None:
    training(network())(X)
    swept = moments(lambda: training(network())(X))
    before = Leftovers.now()
    for moment in swept:
        model = network()
        executor = training(model)
        with suppress(KeyboardInterrupt), interrupted_after(moment):
            executor(X)
        assert before.difference() == ""
        assert executor(X)[0].shape == (4, 2)
        executor.destroy()
        assert type(model) is Module
        assert type(model.first.weight) is nn.Parameter
        assert torch.isfinite(model(X)[0]).all()


def hang() -> None:
    while True:
        interrupt()


@pytest.mark.parametrize("press", [interrupt, hang], ids=["once", "a forward that hangs ends with the second"])
def test_an_interrupt_while_tracing_stops_at_the_next_op(press: Callable[[], None]) -> None:
    reached: list[str] = []
    model = network(lambda: (press(), reached.append("pressed")))
    executor = training(model)
    with pytest.raises(KeyboardInterrupt):
        executor(X)
    assert reached == (["pressed"] if press is interrupt else [])
    assert not executor.isCompiled()
    model.press = lambda: None
    assert training(model)(X)[0].shape == (4, 2)


def test_a_call_can_be_interrupted_at_any_moment_and_updates_are_whole() -> None:
    """A call's weights are those of plain PyTorch after some whole number of its updates."""
    iterations = 6
    options = quiet(deviceIterations=iterations)
    x = X.repeat(iterations, 1)

    def weights(model: Any) -> Tensor:
        return torch.cat([model.first.weight.detach().flatten(), model.second.weight.detach().flatten()])

    allowed = [weights(in_plain_pytorch(network(), *[(X,)] * updates)) for updates in range(iterations + 1)]
    executor = training(network(), options.clone())
    executor(x)
    swept = moments(lambda: executor(x))
    for moment in swept:
        model = network()
        executor = training(model, options.clone())
        executor.compile(x)
        with suppress(KeyboardInterrupt), interrupted_after(moment):
            executor(x)
        executor.copyWeightsToHost()
        assert min(float((weights(model) - state).abs().max()) for state in allowed) < 1e-5
        assert executor(x)[0].shape == (4, 2)
        executor.destroy()


SETUP = """
import poptorch, torch
from executor_support import Net, X, Y, training, inference
from loading_datasets import Numbers

model = Net()
executor = training(model)
executor(X, Y)
loader = poptorch.DataLoader(poptorch.Options(), Numbers(40), batch_size=4, mode=poptorch.DataLoaderMode.Async,
                             async_options={"sharing_strategy": poptorch.SharingStrategy.Fork})
class Endless(Net):
    def forward(self, x):
        print("tracing", flush=True)
        while True:
            x = x + 1
"""
TRAINING = """
print("started", flush=True)
while True:
    for item in loader:
        executor(X, Y)
"""
COMPILING = 'print("started", flush=True)\ninference(Endless())(X)'
AFTER = """
first = float(executor(X, Y)[1])
for _ in range(20):
    last = float(executor(X, Y)[1])
try:
    rows = sum(len(item) for item in loader)
except AssertionError as error:
    rows = "create a new loader" in str(error)
print(last < first, rows in (True, 40), torch.isfinite(model.first.weight).all().item())
"""
TIMEOUT_IN_S = 120


@pytest.fixture(scope="module")
def notebook() -> Iterator[Callable[..., str]]:
    """A function that runs a cell, stops it when it has printed `stop_at`, and returns what it printed or its error."""
    manager = pytest.importorskip("jupyter_client.manager")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    kernel, client = manager.start_new_kernel(kernel_name="python3", env=environment, startup_timeout=TIMEOUT_IN_S)

    def run(code: str, stop_at: str | None = None) -> str:
        client.execute(code)
        printed = ""
        end = time.monotonic() + TIMEOUT_IN_S
        while time.monotonic() < end:
            message = client.get_iopub_msg(timeout=TIMEOUT_IN_S)
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
                if stop_at is not None and stop_at in printed:
                    stop_at = None
                    kernel.interrupt_kernel()
            elif message["msg_type"] == "error":
                printed += content["ename"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed
        raise TimeoutError(printed)

    try:
        assert "Error" not in run(SETUP)
        yield run
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


@pytest.mark.parametrize(("cell", "stop_at"), [(TRAINING, "started"), (COMPILING, "tracing")], ids=["step", "compile"])
def test_the_next_cell_works_after_an_interrupt(notebook: Callable[..., str], cell: str, stop_at: str) -> None:
    assert "KeyboardInterrupt" in notebook(cell, stop_at)
    assert notebook(AFTER).split()[-3:] == ["True", "True", "True"]
