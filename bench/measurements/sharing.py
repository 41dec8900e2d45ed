"""The number of threads that a model chooses, against the best fixed one: alone, and on busy cores."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torchvision
from torch import Tensor, nn

import poptorch
from ipu_model.compute.threads import SWITCH
from ipu_model.cores import usable_cores
from measurements.stepping import WithLoss
from measurements.timing import Row

_SECONDS_EACH = 0.3


def rows(rounds: int) -> list[Row]:
    """Measure a training step of a small, a medium and a large program, with and without neighbours."""
    torch.manual_seed(0)
    programs = {
        "small program (MNIST network)": (_mnist_network, torch.randn(200, 1, 28, 28), 5),
        "medium program (ResNet-18)": (torchvision.models.resnet18, torch.randn(16, 3, 32, 32), 1),
        "large program (wide matrix products)": (_wide_network, torch.randn(512, 2048), 1),
    }
    os.environ.pop(SWITCH, None)
    found = []
    for neighbours in (0, usable_cores()):
        where = f"beside {neighbours} busy processes" if neighbours else "alone"
        with _busy(neighbours):
            for name, (make, x, iterations) in programs.items():
                found += _compared(f"{name} {where}", make, x, iterations, rounds)
    return found


def _compared(what: str, make: Callable[[], nn.Module], x: Tensor, iterations: int, rounds: int) -> list[Row]:
    chosen = _compiled(make(), x, iterations, None)
    fixed = {number: _compiled(make(), x, iterations, number) for number in _numbers(torch.get_num_threads())}
    took = _in_turns([chosen, *fixed.values()], rounds)
    of_chosen, *of_fixed = took
    best = min(of_fixed, key=statistics.median)
    number = list(fixed)[of_fixed.index(best)]
    return [
        Row.ratio(f"{what}: chosen ({chosen.threads}) / best ({number})", _ratio(of_chosen, best), at_most=1.2),
        Row(f"{what}: all ({list(fixed)[-1]}) / chosen ({chosen.threads})", f"{_ratio(of_fixed[-1], of_chosen):.2f}x"),
    ]


def _numbers(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and the largest number."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


@dataclass(frozen=True)
class _Program:
    """A compiled program: the number of threads it has, and what runs a step."""

    threads: int
    step: Callable[[], object]


def _compiled(body: nn.Module, x: Tensor, iterations: int, threads: int | None) -> _Program:
    """Compile a program with this number of threads, or with the one it chooses."""
    model = WithLoss(body)
    options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.01))
    y = torch.randint(0, 10, (len(x),))
    if threads is not None:
        os.environ[SWITCH] = str(threads)
    try:
        training.compile(x, y)
    finally:
        os.environ.pop(SWITCH, None)
    assert training._compiled is not None
    return _Program(training._compiled.session.threads.number, partial(training, x, y))


def _in_turns(programs: Sequence[_Program], rounds: int) -> list[list[float]]:
    """Return the seconds of a step of each program in each round, in which it runs for a while, as neighbours do."""
    seconds: list[list[float]] = [[] for _ in programs]
    order = list(zip(programs, seconds))
    for _ in range(rounds):
        order.reverse()  # Whoever comes after a program with many threads suffers from the scheduler's fairness.
        for program, own in order:
            program.step()
            start, count = time.perf_counter(), 0
            while count == 0 or time.perf_counter() - start < _SECONDS_EACH:
                program.step()
                count += 1
            own.append((time.perf_counter() - start) / count)
    return seconds


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios in each round: rounds differ by what else the machine does."""
    return statistics.median(a / b for a, b in zip(above, below))


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Keep `count` processes busy for as long as the context lasts."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5 if processes else 0.0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _mnist_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip


def _wide_network() -> nn.Module:
    return nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048))
