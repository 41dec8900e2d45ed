"""Several threads and processes: results are right, never mixed, and a trace leaves the rest of the program alone."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_support import Net, X, Y, inference, quiet, training
from fuzz.leftovers import Leftovers
from loading_datasets import Numbers
from torch import Tensor, nn

import poptorch

THREADS = 3


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run `work(number)` in threads at once and raise the first error."""
    errors: list[BaseException] = []
    ready = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            ready.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


@pytest.fixture(autouse=True)
def threads_alternate_often() -> Any:
    """Let Python change threads a hundred times as often, so that what can go wrong does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def test_models_in_several_threads_train_like_plain_pytorch() -> None:
    def work(number: int) -> None:
        model = nets[number]
        plain = copy.deepcopy(model)
        optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
        executor = training(model)
        for _ in range(3):
            executor(X + number, Y)
            optimiser.zero_grad()
            plain(X + number, Y)[1].backward()
            optimiser.step()
        torch.testing.assert_close(model.first.weight.detach(), plain.first.weight.detach())
        executor.destroy()

    nets = [Net() for _ in range(THREADS)]
    in_threads(work)


def test_one_inference_model_in_several_threads_mixes_nothing() -> None:
    """The first of the threads compiles it, the others wait."""
    model = Net()
    plain = copy.deepcopy(model)
    executor = inference(model, quiet().deviceIterations(2))

    def work(number: int) -> None:
        for repeat in range(12):
            x = X + number + repeat / 7
            with torch.no_grad():
                torch.testing.assert_close(executor(x), plain(x))

    in_threads(work)


def test_one_training_model_in_several_threads_loses_no_update() -> None:
    """All use the same batch, so that the order of their updates does not matter."""
    model = Net()
    plain = copy.deepcopy(model)
    executor = training(model)

    def work(number: int) -> None:
        for _ in range(5):
            executor(X, Y)
            assert torch.isfinite(model.first.weight).all()  # This may bring the weights from the device.

    in_threads(work)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(5 * THREADS):
        optimiser.zero_grad()
        plain(X, Y)[1].backward()
        optimiser.step()
    torch.testing.assert_close(model.first.weight.detach(), plain.first.weight.detach(), rtol=1e-4, atol=1e-5)


def test_plain_pytorch_is_not_disturbed_by_a_trace_in_another_thread() -> None:
    """Another model's autograd, types, random numbers and hooks stay its own while a model is traced."""
    tracing, done = threading.Event(), threading.Event()

    class Waiting(Net):
        def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
            tracing.set()
            assert done.wait(60)
            return super().forward(x, y)

    thread = threading.Thread(target=lambda: training(Waiting())(X, Y))
    thread.start()
    try:
        assert tracing.wait(60)
        plain = Net()
        torch.manual_seed(3)
        drawn = torch.rand(4)
        out, loss = plain(X, Y)
        loss.backward()
        assert type(out) is Tensor
        assert out.grad_fn is not None
        assert plain.first.weight.grad is not None
        assert torch.is_grad_enabled()
        assert not poptorch.isRunningOnIpu()
        assert torch.get_default_dtype() is torch.float32
    finally:
        done.set()
        thread.join()
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(4))


class Misbehaves(nn.Module):
    """Raises in forward, in its loss or in its backward."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.layer, self.where = nn.Linear(3, 2), where

    def forward(self, x: Tensor) -> Any:
        out = self.layer(x)
        if self.where == "forward":
            raise LookupError("in forward")
        if self.where == "recursion":
            return self.forward(out @ torch.ones(2, 3))
        if self.where == "loss":
            return out, self.loss(out)
        return out, poptorch.identity_loss(FailingBackward.apply(out), "sum")

    def loss(self, out: Tensor) -> Tensor:
        raise LookupError("in the loss")


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise LookupError("in backward")


@pytest.mark.parametrize("where", ["forward", "loss", "backward", "recursion"])
def test_a_programs_own_error_passes_and_torch_is_as_before(where: str) -> None:
    before = Leftovers.now()
    state = torch.get_rng_state()
    model = Misbehaves(where)
    drawn = torch.get_rng_state()
    executor = training(model)
    with pytest.raises(RecursionError if where == "recursion" else LookupError):
        executor(X)
    assert before.difference() == ""
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not torch.equal(state, drawn)  # Making the layer drew from it; the trace did not.
    assert type(model) is Misbehaves
    assert training(Net())(X, Y)[0].shape == (4, 2)


def test_a_shape_beyond_any_memory_is_refused_before_it_is_made() -> None:
    class Huge(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum() + torch.ones(1_000_000, 1_000_000)

    with pytest.raises(poptorch.Error, match="out of memory"):
        inference(Huge())(X)


def exit_code_of_fork(work: Callable[[], None]) -> int:
    """Run `work` in a forked copy of this process; 1 stands for an error, -9 for a copy that hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_compiled_model_works_in_a_forked_copy_and_here() -> None:
    model = Net()
    executor = training(model)
    executor(X, Y)

    def work() -> None:
        executor(X, Y)
        executor.destroy()
        assert inference(Net())(X).shape == (4, 2)

    assert exit_code_of_fork(work) == 0
    assert executor(X, Y)[0].shape == (4, 2)


def test_gradients_can_be_computed_in_a_forked_copy() -> None:
    """A process of its own, because autograd decides the first time it runs whether it starts threads."""
    program = """
import os, sys, torch, poptorch
from torch import nn

class Step(nn.Linear):
    def forward(self, x):
        return nn.functional.mse_loss(super().forward(x), x)

def train():
    model = Step(2, 2)
    poptorch.trainingModel(model, poptorch.Options().showCompilationProgressBar(False))(torch.ones(4, 2))
    model(torch.ones(4, 2)).backward()

train()
child = os.fork()
if child == 0:
    train()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_a_fork_while_a_thread_runs_the_model_does_not_hang() -> None:
    """The copy has no such thread, so nobody in it would ever end that thread's turn."""
    inside, forked = threading.Event(), threading.Event()

    class Waiting(Net):
        def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
            if threading.current_thread() is thread:
                inside.set()
                assert forked.wait(60)
            return super().forward(x, y)

    executor = training(Waiting())
    thread = threading.Thread(target=lambda: executor(X, Y))
    thread.start()
    try:
        assert inside.wait(60)
        code = exit_code_of_fork(executor.destroy)
    finally:
        forked.set()
        thread.join()
    assert code == 0


def test_a_fork_while_a_thread_draws_random_numbers_does_not_hang() -> None:
    """The streams of a program are drawn from in turns, for a whole micro-batch each."""
    inside, forked = threading.Event(), threading.Event()

    def wait(x: Tensor) -> Tensor:
        if threading.current_thread() is thread:
            inside.set()
            assert forked.wait(60)
        return x

    class Waiting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wait = poptorch.CPU(wait, "wait")

        def forward(self, x: Tensor) -> Tensor:
            return self.wait(nn.functional.dropout(x, 0.5, training=True))

    thread = threading.Thread(target=lambda: waiting(X))
    waiting, random = inference(Waiting()), inference(nn.Dropout())
    waiting.compile(X)
    random(X)
    thread.start()
    try:
        assert inside.wait(60)
        code = exit_code_of_fork(lambda: random(X))
    finally:
        forked.set()
        thread.join()
    assert code == 0


def test_two_loaders_at_a_time_keep_their_data_apart() -> None:
    sharing = {"sharing_strategy": poptorch.SharingStrategy.Fork}
    loaders = [
        poptorch.DataLoader(
            quiet(), Numbers(count), batch_size=2, mode=poptorch.DataLoaderMode.Async, async_options=sharing
        )
        for count in (6, 8)
    ]
    seen: list[list[float]] = [[], []]
    streams = [iter(loader) for loader in loaders]
    for _ in range(3):
        for stream, rows in zip(streams, seen):
            rows.extend(next(stream)[:, 0].tolist())
    assert seen == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    for loader in loaders:
        loader.terminate()
