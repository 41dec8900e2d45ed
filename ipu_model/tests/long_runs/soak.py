"""Train for a long time and watch memory, files, threads and processes: `make soak`."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fuzz.leftovers import Leftovers
from torch import nn

import poptorch

_FEATURES, _CLASSES, _ROWS = 16, 4, 8
_ITEMS_PER_PASS = 200
_ITEMS_OF_A_SHORT_PASS = 60
_QUARTERS = 4
_KIB_PER_MIB = 1024
_COUNTS = ("descriptors", "threads", "processes", "shared_maps")


@dataclass(frozen=True)
class Usage:
    """What a program holds at one moment: resident memory in MiB, of this process and of its loaders', and the rest."""

    step: int
    own_mib: float
    loaders_mib: float
    left: Leftovers

    @classmethod
    def now(cls, step: int) -> Usage:
        """Measure, after a collection of garbage; Linux only."""
        gc.collect()
        loaders = (child.pid for child in multiprocessing.active_children() if child.pid)
        return cls(step, _resident_mib(os.getpid()), sum(map(_resident_mib, loaders)), Leftovers.now())

    def __str__(self) -> str:
        left = self.left
        return (
            f"{self.step:>8} {self.own_mib:>10.1f} {self.loaders_mib:>12.1f} {left.descriptors:>6} {left.threads:>8} "
            f"{left.processes:>10} {left.shared_maps:>7}"
        )


HEADING = f"{'step':>8} {'own MiB':>10} {'loaders MiB':>12} {'files':>6} {'threads':>8} {'processes':>10} {'shared':>7}"


def _resident_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    sizes = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return float(sizes[0]) / _KIB_PER_MIB if sizes else 0.0


@dataclass(frozen=True)
class Tolerance:
    """How much more memory, in MiB, may be held at the end than after the warm-up; counts may not grow at all."""

    own_mib: float
    loaders_mib: float

    def complaints(self, first: Usage, last: Usage) -> list[str]:
        """Return in words what has grown."""
        limits = (
            ("MiB of this process", first.own_mib, last.own_mib, self.own_mib),
            ("MiB of loaders", first.loaders_mib, last.loaders_mib, self.loaders_mib),
            *((name, getattr(first.left, name), getattr(last.left, name), 0.0) for name in _COUNTS),
        )
        return [
            f"{name} grew from {before:.1f} to {after:.1f}, more than {limit}"
            for name, before, after, limit in limits
            if after - before > limit
        ]


# Heaps settle for some thousand steps; a leak of one tensor a step would be far more than this.
STEPS = Tolerance(own_mib=8, loaders_mib=8)
# Compiling leaves a little in torch's own caches: the tolerance is for 200 programs.
PROGRAMS = Tolerance(own_mib=24, loaders_mib=8)


class Classifier(nn.Module):
    """Two layers and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(_FEATURES, 32), nn.ReLU(), nn.Linear(32, _CLASSES))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and loss."""
        scores = self.body(x)
        return scores, nn.functional.cross_entropy(scores, y)


def _options() -> poptorch.Options:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(2)
    return options


def _wrapped(options: poptorch.Options) -> Any:
    model = Classifier()
    return poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=1e-3))


def _loader(options: poptorch.Options, items: int, **others: Any) -> poptorch.DataLoader:
    data = torch.randn(items * 2 * _ROWS, _FEATURES, generator=torch.Generator().manual_seed(0))
    samples = torch.utils.data.TensorDataset(data, data[:, :_CLASSES].argmax(1))
    mode = poptorch.DataLoaderMode.Async
    return poptorch.DataLoader(options, samples, batch_size=_ROWS, shuffle=True, mode=mode, **others)


def training_steps(
    steps: int, points: int, sharing: poptorch.SharingStrategy = poptorch.SharingStrategy.ForkServer
) -> Iterator[Usage]:
    """Train one model with asynchronous loading; yield at the start, after each of `points` equal parts.

    A tenth of `steps` more comes first, to warm up. Every third pass over the data is left halfway; now and then the
    weights come to the host.
    """
    options = _options()
    training = _wrapped(options)
    loader = _loader(options, _ITEMS_PER_PASS, async_options={"sharing_strategy": sharing})
    batches = _passes(loader)
    warm_up = max(1, steps // 10)
    for done in range(-warm_up, steps):
        if done >= 0 and done % max(1, steps // points) == 0:
            yield Usage.now(done)
        _, loss = training(*next(batches))
        if not bool(loss.isfinite().all()):
            raise ArithmeticError(f"the loss of step {done} is {loss}")
        if done % 100 == 0:
            training.copyWeightsToHost()
    yield Usage.now(steps)
    loader.terminate()
    training.destroy()


def _passes(loader: poptorch.DataLoader) -> Iterator[Any]:
    number = 0
    while True:
        number += 1
        for index, batch in enumerate(loader):
            if number % 3 == 0 and index == _ITEMS_OF_A_SHORT_PASS:
                break
            yield batch


def programs(count: int, points: int) -> Iterator[Usage]:
    """Make a model and a loader, train some steps and drop both, `count` times; yield as `training_steps` does."""
    sharing = {"sharing_strategy": poptorch.SharingStrategy.Fork}
    warm_up = max(2, count // 10)
    for done in range(-warm_up, count):
        if done >= 0 and done % max(1, count // points) == 0:
            yield Usage.now(done)
        options = _options()
        training, loader = _wrapped(options), _loader(options, 4, async_options=sharing)
        for batch in loader:
            training(*batch)
        if done % 2:
            loader.terminate()
            training.destroy()
        # The other half of them is left to the garbage collector.
        del training, loader
    yield Usage.now(count)


def main() -> int:
    """Do both runs, print what was held at each quarter, and return 1 if anything grew."""
    parser = argparse.ArgumentParser(description="train for a long time and see that nothing grows")
    parser.add_argument("--steps", type=int, default=10_000, help="training steps of one model (default 10000)")
    parser.add_argument("--programs", type=int, default=200, help="models and loaders made in turn (default 200)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps = f"{arguments.steps} training steps with asynchronous loading"
    found = _watch(steps, training_steps(arguments.steps, _QUARTERS), STEPS)
    made = f"{arguments.programs} programs, each with a model and a loader"
    found += _watch(made, programs(arguments.programs, _QUARTERS), PROGRAMS)
    print("grew: " + "; ".join(found) if found else "nothing grew beyond the tolerance")
    return int(bool(found))


def _watch(what: str, run: Iterator[Usage], tolerance: Tolerance) -> list[str]:
    print(f"{what} (may grow by {tolerance.own_mib} MiB here, {tolerance.loaders_mib} MiB in loaders)")
    print(HEADING)
    seen = []
    for usage in run:
        print(usage, flush=True)
        seen.append(usage)
    return tolerance.complaints(seen[0], seen[-1])


if __name__ == "__main__":
    sys.exit(main())
