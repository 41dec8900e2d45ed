"""Several threads and processes: results are right, never mixed, and a trace leaves the rest of the program alone."""

from __future__ import annotations

import copy
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from executor_support import Module, Net, X, Y, in_plain_pytorch, inference, quiet, runs, training
from fuzz.leftovers import Leftovers
from test_operators import evaluated, expressions, values
from torch import Tensor, nn

import poptorch

THREADS = 3


def in_threads(work: Callable[[int], Any]) -> None:
    """Run `work(number)` in threads at once and raise the first error."""
    ready = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda number: (ready.wait(), work(number)), range(THREADS)))


class Meeting:
    """A thread runs `program` and waits where it calls `wait`, for as long as the body of `with` takes."""

    def __init__(self) -> None:
        self.inside, self.done = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def wait(self, x: Tensor) -> Tensor:
        if threading.current_thread() is self.thread:
            self.inside.set()
            assert self.done.wait(60)
        return x

    @contextmanager
    def during(self, program: Callable[[], Any]) -> Iterator[None]:
        self.thread = threading.Thread(target=program)
        self.thread.start()
        try:
            assert self.inside.wait(60)
            yield
        finally:
            self.done.set()
            self.thread.join()


def waiting(meeting: Meeting) -> Any:
    return Module(lambda m, x, y: m.net(meeting.wait(x), y), net=Net())


@pytest.fixture(autouse=True)
def threads_alternate_often() -> Iterator[None]:
    """Let Python change threads a hundred times as often, so that what can go wrong does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


# All ways to draw, functions of `values()`.
DRAWS = {expression: evaluated(expression) for expression in expressions("drawn")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DRAWS)
def test_what_is_drawn_is_what_pytorch_draws_from_the_same_state(name: str) -> None:
    """Bit by bit, and again from the same seed; the host's generator stays where it was."""
    function, inputs = DRAWS[name], values()
    executor = runs(function)
    executor(*copy.deepcopy(inputs))
    before = torch.get_rng_state()
    seen = []
    for _ in range(2):
        executor.rng_state = [7]
        seen.append(executor(*copy.deepcopy(inputs)))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    expected = function(*copy.deepcopy(inputs))
    torch.set_rng_state(before)
    for result in seen:
        torch.testing.assert_close(result.double(), expected.double(), rtol=1e-3, atol=1e-6)


class TestThreads:
    def test_models_in_several_threads_train_like_plain_pytorch(self) -> None:
        nets = [Net() for _ in range(THREADS)]

        def work(number: int) -> None:
            model = nets[number]
            plain = in_plain_pytorch(copy.deepcopy(model), *[(X + number, Y)] * 3)
            executor = training(model)
            for _ in range(3):
                executor(X + number, Y)
            torch.testing.assert_close(model.first.weight.detach(), plain.first.weight.detach())
            executor.destroy()

        in_threads(work)
        assert torch.backends.mha.get_fastpath_enabled()
        with pytest.raises(ValueError, match="constraint"):
            torch.distributions.Normal(X, -1 - X)

    def test_one_inference_model_in_several_threads_mixes_nothing(self) -> None:
        """The first of the threads compiles it, the others wait."""
        model = Net()
        plain = copy.deepcopy(model)
        executor = inference(model, quiet(deviceIterations=2))

        def work(number: int) -> None:
            for repeat in range(12):
                x = X + number + repeat / 7
                with torch.no_grad():
                    torch.testing.assert_close(executor(x), plain(x))

        in_threads(work)

    def test_one_training_model_in_several_threads_loses_no_update(self) -> None:
        """All use the same batch, so that the order of their updates does not matter."""
        model = Net()
        plain = in_plain_pytorch(copy.deepcopy(model), *[(X, Y)] * (5 * THREADS))
        executor = training(model)

        def work(number: int) -> None:
            for _ in range(5):
                executor(X, Y)
                assert torch.isfinite(model.first.weight).all()  # This may bring the weights from the device.

        in_threads(work)
        torch.testing.assert_close(model.first.weight.detach(), plain.first.weight.detach(), rtol=1e-4, atol=1e-5)

    def test_executors_that_draw_random_numbers_keep_their_own_sequences(self) -> None:
        def executors() -> list[poptorch.PoplarExecutor]:
            noise = Module(lambda model, x: x + torch.rand(x.shape))
            return [inference(noise, quiet(randomSeed=seed)) for seed in range(THREADS)]

        def draws(executor: poptorch.PoplarExecutor) -> Tensor:
            return torch.stack([executor(X) for _ in range(30)])

        alone = [draws(executor) for executor in executors()]
        # Made before the threads start: randomSeed seeds the host's generator, too.
        parallel = executors()
        together: dict[int, Tensor] = {}
        in_threads(lambda number: together.update({number: draws(parallel[number])}))
        for number in range(THREADS):
            assert torch.equal(alone[number], together[number])

    def test_plain_pytorch_is_not_disturbed_by_a_trace_in_another_thread(self) -> None:
        """Another model's autograd, types, random numbers and hooks stay its own while a model is traced."""
        meeting, model = Meeting(), Net()

        def plain() -> list[Any]:
            torch.manual_seed(3)
            out, loss = model(X, Y)
            gradient = torch.autograd.grad(loss, model.first.weight)[0]
            return [torch.rand(4), out.detach(), gradient, type(out), poptorch.isRunningOnIpu()]

        alone, traced = plain(), training(waiting(meeting))
        with meeting.during(lambda: traced(X, Y)):
            beside = plain()
        torch.testing.assert_close(beside[:3], alone[:3], rtol=0, atol=0)
        assert beside[3:] == alone[3:] == [Tensor, False]

    def test_a_model_that_draws_random_numbers_waits_for_no_other(self) -> None:
        """One is in the middle of a micro-batch, in a function of the host's, while others run from start to end."""
        meeting = Meeting()
        op = poptorch.CPU(meeting.wait, "wait")
        slow = inference(Module(lambda m, x: nn.functional.dropout(m.op(x), 0.5, training=True), op=op))
        slow.compile(X)
        others, inputs = [runs(function) for function in DRAWS.values()], values()
        expected = [other(*inputs) for other in others]
        for other in others:
            other.rng_state = [5]
        with meeting.during(lambda: slow(X)), ThreadPoolExecutor(1) as pool:
            beside = pool.submit(lambda: [other(*inputs) for other in others]).result(60)
        assert [result.shape for result in beside] == [result.shape for result in expected]

    def test_the_hosts_random_numbers_are_its_own_while_a_model_draws(self) -> None:
        """Two generators with the same seed give the same numbers; the host's does not see those of the model."""
        executor, inputs = runs(lambda *inputs: [function(*inputs) for function in DRAWS.values()]), values()
        executor(*inputs)
        torch.manual_seed(3)
        alone, drawn = torch.rand(5), []
        torch.manual_seed(3)
        done = threading.Event()

        def draws() -> None:
            while not done.is_set():
                drawn.append(executor(*inputs))

        thread = threading.Thread(target=draws)
        thread.start()
        beside = torch.stack([torch.rand(()) for _ in range(5)])
        done.set()
        thread.join()
        assert torch.equal(beside, alone)
        assert drawn

    def test_modules_running_in_another_thread_do_not_disturb_a_trace(self) -> None:
        meeting = Meeting()
        with meeting.during(lambda: waiting(meeting)(X, Y)):

            def forward(model: Any, x: Tensor) -> Tensor:
                h = model.net.first(x)
                meeting.done.set()
                meeting.thread.join()
                return model.net.second(h)

            assert inference(Module(forward, net=Net()))(X).shape == (4, 2)


def test_a_recursion_without_end_passes_and_torch_is_as_before() -> None:
    """Other errors of a program: `test_executor_lifecycle.py`."""
    model = Module(lambda m, x: m(m.layer(x) @ torch.ones(2, 3)), layer=nn.Linear(3, 2))
    before, drawn = Leftovers.now(), torch.get_rng_state()
    with pytest.raises(RecursionError):
        training(model)(X)
    assert before.difference() == ""
    assert torch.equal(torch.get_rng_state(), drawn)
    assert type(model) is Module
    assert training(Net())(X, Y)[0].shape == (4, 2)


def exit_code_of_fork(work: Callable[[], Any]) -> int | None:
    """Run `work` in a forked copy of this process; 1 stands for an error, None for a copy that hangs."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    code = child.exitcode
    child.kill()
    child.join()
    return code


class TestForks:
    def test_a_compiled_model_works_in_a_forked_copy_and_here(self) -> None:
        executor = training(Net())
        executor(X, Y)

        def work() -> None:
            executor(X, Y)
            executor.destroy()
            assert inference(Net())(X).shape == (4, 2)

        assert exit_code_of_fork(work) == 0
        assert executor(X, Y)[0].shape == (4, 2)

    def test_gradients_can_be_computed_in_a_forked_copy(self) -> None:
        """A process of its own, because autograd decides the first time it runs whether it starts threads."""
        program = """
from test_threads_and_forks import Net, X, Y, exit_code_of_fork, training

def train():
    model = Net()
    training(model)(X, Y)
    model(X, Y)[1].backward()

train()
assert exit_code_of_fork(train) == 0
"""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)

    def test_while_a_thread_runs_the_model_does_not_hang(self) -> None:
        """The copy has no such thread, so nobody in it would ever end that thread's turn."""
        meeting = Meeting()
        executor = training(waiting(meeting))
        with meeting.during(lambda: executor(X, Y)):
            assert exit_code_of_fork(executor.destroy) == 0

    def test_while_a_thread_draws_random_numbers_does_not_hang(self) -> None:
        """The streams of a program are drawn from in turns, for a whole micro-batch each."""
        meeting = Meeting()
        op = poptorch.CPU(meeting.wait, "wait")
        draws = inference(Module(lambda m, x: m.op(nn.functional.dropout(x, 0.5, training=True)), op=op))
        random = inference(nn.Dropout())
        draws.compile(X)
        random(X)
        with meeting.during(lambda: draws(X)):
            assert exit_code_of_fork(lambda: random(X)) == 0
