"""The number of threads that a model chooses, against the best fixed one: alone, and on busy cores."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import poptorch
from ipu_model.compute.threads import SWITCH
from ipu_model.cores import usable_cores
from measurements.timing import Row

_CHOSEN = "chosen"
_SECONDS_EACH = 0.3


class WithLoss(nn.Module):
    """A classifier that returns its cross entropy."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch."""
        return F.cross_entropy(self.body(x), y)


def rows(rounds: int) -> list[Row]:
    """Measure a training step of a small, a medium and a large program, with and without neighbours."""
    torch.manual_seed(0)
    programs = {
        "small program (MNIST network)": (_mnist_network, torch.randn(200, 1, 28, 28), 5),
        "medium program (ResNet-18)": (torchvision.models.resnet18, torch.randn(16, 3, 32, 32), 1),
        "large program (wide matrix products)": (_wide_network, torch.randn(512, 2048), 1),
    }
    found = []
    for neighbours in (0, usable_cores()):
        where = f"beside {neighbours} busy processes" if neighbours else "alone"
        with _busy(neighbours):
            for name, (make, x, iterations) in programs.items():
                found += _compared(f"{name} {where}", make, x, iterations, rounds)
    return found


def _compared(what: str, make: Callable[[], nn.Module], x: Tensor, iterations: int, rounds: int) -> list[Row]:
    fixed = [str(number) for number in _numbers(torch.get_num_threads())]
    took = _in_turns({number: _step(make(), x, iterations, number) for number in (_CHOSEN, *fixed)}, rounds)
    best = min(fixed, key=lambda number: took[number])
    return [
        Row.ratio(f"{what}: chosen number of threads / best ({best})", took[_CHOSEN] / took[best], at_most=1.2),
        Row(f"{what}: all {fixed[-1]} threads / chosen", f"{took[fixed[-1]] / took[_CHOSEN]:.2f}x"),
    ]


def _numbers(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and the largest number."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def _step(body: nn.Module, x: Tensor, iterations: int, threads: str) -> Callable[[], object]:
    """Compile a program, with this number of threads or the one it chooses; return a function that runs a step."""
    model = WithLoss(body)
    options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.01))
    y = torch.randint(0, 10, (len(x),))
    os.environ.pop(SWITCH, None)
    if threads != _CHOSEN:
        os.environ[SWITCH] = threads
    try:
        training.compile(x, y)
    finally:
        os.environ.pop(SWITCH, None)
    return partial(training, x, y)


def _in_turns(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each step: in each round each runs for a while, as neighbours do."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            start, count = time.perf_counter(), 0
            while count == 0 or time.perf_counter() - start < _SECONDS_EACH:
                step()
                count += 1
            seconds[name].append((time.perf_counter() - start) / count)
    return {name: statistics.median(values) for name, values in seconds.items()}


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
