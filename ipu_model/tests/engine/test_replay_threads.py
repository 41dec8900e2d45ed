"""How many threads a replay uses, from the work and the free cores, and what a run sets in PyTorch."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from tracing_support import Net, session_of, traced

from ipu_model.capture.describe import step_of
from ipu_model.compute.threads import SWITCH, ParallelWork, Threads, choose, threads_for, work_of
from ipu_model.cores import Cores, CoreWatch
from ipu_model.errors import Error

MICROSECOND, MILLISECOND = 1e-6, 1e-3
TINY = Counter({ParallelWork(4 * MICROSECOND): 10})
SMALL = Counter({ParallelWork(400 * MICROSECOND): 20})
MEDIUM = Counter({ParallelWork(2 * MILLISECOND): 20})
LARGE = Counter({ParallelWork(80 * MILLISECOND): 5})
INDIVISIBLE = Counter({ParallelWork(80 * MILLISECOND, most=1): 5})
BUSY = Cores(2, busy=2)


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let PyTorch use four threads, whatever the machine has."""
    monkeypatch.delenv(SWITCH, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("work", "cores", "limit", "asleep", "threads"), [
    # On a free machine only tiny work uses one thread, on a busy one only large ops use several.
    (TINY, Cores(2), 2, False, 1), (SMALL, Cores(2), 2, False, 2), (LARGE, Cores(2), 2, False, 2),
    (TINY, BUSY, 2, False, 1), (SMALL, BUSY, 2, False, 1), (LARGE, BUSY, 2, False, 2),
    # With sleeping threads smaller ops do.
    (MEDIUM, BUSY, 2, False, 1), (MEDIUM, BUSY, 2, True, 2),
    # Small ops use the cores that are left.
    (SMALL, Cores(4, busy=2), 4, False, 2), (SMALL, Cores(4, busy=3), 4, False, 1),
    # Never more than the user set, nor than a quota.
    (LARGE, Cores(64), 3, False, 3), (LARGE, Cores(64, quota=2), 64, False, 2),
    (LARGE, Cores(64, quota=0.5), 64, False, 1),
    (INDIVISIBLE, Cores(8), 8, False, 1),
])  # fmt: skip
def test_the_number_of_threads(work: Any, cores: Cores, limit: int, asleep: bool, threads: int) -> None:
    assert choose(work, cores, limit, asleep=asleep) == threads


def work_in(model: nn.Module, *shape: int, training: bool = False) -> Counter[ParallelWork]:
    """Return the work of a micro-batch; seconds at one operation per second are numbers of operations."""
    return work_of(step_of(traced(model, torch.zeros(shape), training=training)), 1.0)


def convolution() -> Net:
    """A convolution of images of 10 x 10 pixels, and its loss."""
    return Net(lambda net, x: F.mse_loss(net.conv(x), torch.zeros(4, 8, 8, 8)), conv=nn.Conv2d(3, 8, 3, bias=False))


def test_contractions_count_their_multiplications_and_additions() -> None:
    assert work_in(nn.Linear(16, 32, bias=False), 8, 16) == Counter({ParallelWork(2 * 8 * 16 * 32): 1})
    forward = 2 * (4 * 8 * 8 * 8) * (3 * 3 * 3)
    # Backward computes only the weights' gradient, which takes as many operations: the input needs none.
    assert work_in(convolution(), 4, 3, 10, 10, training=True)[ParallelWork(forward)] == 2


def test_pytorch_divides_elements_only_in_large_parts_and_views_are_no_work() -> None:
    for elements, most in ((1000, 1), (4 * 32768, 4)):
        (piece,) = work_in(nn.Tanh(), elements)
        assert piece.most == most
    assert not work_in(nn.Flatten(), 4, 5, 6)


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_is_many_small_pieces_backward_as_many_as_forward(layer: type[nn.Module], gates: int) -> None:
    """In each of 10 steps 4 sequences meet the weights of the gates: 32 states by 16 inputs and 32 states."""
    model = Net(lambda net, x: F.mse_loss(net.layer(x)[0], torch.zeros(10, 4, 32)), layer=layer(16, 32))
    piece = ParallelWork(2 * 4 * gates * 32 * (16 + 32))
    assert work_in(model, 10, 4, 16)[piece] == 10
    # Nobody asks for the gradient of the input, so the first result of the backward op is that of a weight.
    assert work_in(model, 10, 4, 16, training=True)[piece] == 2 * 10


def test_a_run_uses_its_number_and_restores_the_users_even_within_a_run_or_after_an_error() -> None:
    """A run within a run happens when poptorch.CPU calls a function that runs another model."""
    seen: list[int] = []
    images = torch.zeros(4, 3, 10, 10)
    session = session_of(convolution(), images, threads=Threads(2))
    session.update = lambda gradients, scale: seen.append(torch.get_num_threads())
    session.run([images])
    with pytest.raises(ZeroDivisionError), Threads(2).in_use():  # noqa: PT012
        with Threads(1).in_use():
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())
        raise ZeroDivisionError
    assert seen == [2, 1, 2]
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("fixed", "used"), [(False, 1), (True, 2)])
def test_a_smaller_number_that_the_user_sets_later_applies_unless_one_is_fixed(fixed: bool, used: int) -> None:
    torch.set_num_threads(1)
    with Threads(2, fixed=fixed).in_use():
        assert torch.get_num_threads() == used
    assert torch.get_num_threads() == 1


def test_overlapping_runs_in_two_python_threads_restore_the_users_number() -> None:
    """The second begins while the first has set its own number, and ends after it."""
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()
    seen: list[int] = []

    def first() -> None:
        with Threads(1).in_use():
            first_is_in.set()
            second_is_in.wait(10)
        first_is_out.set()

    def second() -> None:
        first_is_in.wait(10)
        with Threads(2).in_use():
            seen.append(torch.get_num_threads())
            second_is_in.set()
            first_is_out.wait(10)

    for functions in ((first, second), (lambda: seen.append(torch.get_num_threads()),)):
        started = [threading.Thread(target=function) for function in functions]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(20)
    assert seen == [2, 4]


def test_programs_take_what_they_need_and_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, large = (
        step_of(traced(nn.Linear(size, size), torch.zeros(size, size), training=False)) for size in (4, 4096)
    )
    assert threads_for(tiny, CoreWatch()) == Threads(1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64), raising=False)
    for name, text in (("proc/self/cgroup", "0::/"), ("sys/fs/cgroup/cpu.max", "200000 100000")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert threads_for(large, CoreWatch(tmp_path)) == Threads(2)
    monkeypatch.setenv(SWITCH, "3")
    assert threads_for(tiny, CoreWatch()) == Threads(3, fixed=True)
    for mistake in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv(SWITCH, mistake)
        with pytest.raises(Error, match=f"IPU_MODEL_THREADS must be the number of threads .* got '{mistake}'"):
            threads_for(tiny, CoreWatch())
