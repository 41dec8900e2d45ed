"""Train for a long time and watch memory, files, threads and processes: `make soak`."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch
from fuzz.leftovers import Leftovers
from fuzz.networks import Network

import poptorch

_ROWS = 8
_ITEMS_OF_A_SHORT_PASS = 60
_POINTS = 4


# How much more memory, in MiB, may be held at the end than after the warm-up; nothing else may grow at all.
# Heaps settle for some thousand steps; a leak of one tensor a step would be far more than this.
STEPS = {"own_mib": 8.0, "loaders_mib": 8.0}
# Compiling leaves a little in torch's own caches: the tolerance is for 200 programs.
PROGRAMS = {"own_mib": 24.0, "loaders_mib": 8.0}

Usage = dict[str, float]


def usage_now() -> Usage:
    """Measure what is held, after a collection of garbage; memory of this process and of its loaders. Linux only."""
    gc.collect()
    loaders = (_resident_mib(child.pid) for child in multiprocessing.active_children() if child.pid)
    counts = ("descriptors", "threads", "processes", "shared_maps")
    held = {name: count for name, count in Leftovers.now().items() if name in counts}
    return {"own_mib": _resident_mib(os.getpid()), "loaders_mib": sum(loaders), **held}


def grown(first: Usage, last: Usage, tolerance: Usage) -> list[str]:
    return [
        f"{name} grew from {before:.1f} to {last[name]:.1f}, more than {tolerance.get(name, 0.0)}"
        for name, before in first.items()
        if last[name] - before > tolerance.get(name, 0.0)
    ]


def _resident_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)


def _program(items: int, sharing: poptorch.SharingStrategy) -> tuple[Any, poptorch.DataLoader]:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(2)
    network = Network("perceptron")
    network.with_loss = True
    training = poptorch.trainingModel(network, options, poptorch.optim.AdamW(network.parameters(), lr=1e-3))
    data = torch.randn(items * 2 * _ROWS, 3, generator=torch.Generator().manual_seed(0))
    mode, how = poptorch.DataLoaderMode.Async, {"sharing_strategy": sharing}
    return training, poptorch.DataLoader(options, data, _ROWS, shuffle=True, mode=mode, async_options=how)


def training_steps(
    steps: int, points: int, sharing: poptorch.SharingStrategy = poptorch.SharingStrategy.ForkServer
) -> Iterator[Usage]:
    """Train one model with asynchronous loading; yield at the start, after each of `points` equal parts.

    A tenth of `steps` more comes first, to warm up. Every third pass over the data is left halfway; now and then the
    weights come to the host.
    """
    training, loader = _program(200, sharing)
    passes = (islice(loader, None if number % 3 else _ITEMS_OF_A_SHORT_PASS) for number in count(1))
    batches = chain.from_iterable(passes)
    for done in range(-max(1, steps // 10), steps):
        if done >= 0 and done % max(1, steps // points) == 0:
            yield usage_now()
        _, loss = training(next(batches))
        if not bool(loss.isfinite().all()):
            raise ArithmeticError(f"the loss of step {done} is {loss}")
        if done % 100 == 0:
            training.copyWeightsToHost()
    yield usage_now()
    loader.terminate()
    training.destroy()


def programs(number: int, points: int) -> Iterator[Usage]:
    """Make a model and a loader, train some steps and drop both, `number` times; yield as `training_steps` does."""
    for done in range(-max(2, number // 10), number):
        if done >= 0 and done % max(1, number // points) == 0:
            yield usage_now()
        training, loader = _program(4, poptorch.SharingStrategy.Fork)
        for batch in loader:
            training(batch)
        if done % 2:
            loader.terminate()
            training.destroy()
        # The other half of them is left to the garbage collector.
        del training, loader
    yield usage_now()


def main() -> int:
    parser = argparse.ArgumentParser(description="train for a long time and see that nothing grows")
    parser.add_argument("--steps", type=int, default=10_000, help="training steps of one model (default 10000)")
    parser.add_argument("--programs", type=int, default=200, help="models and loaders made in turn (default 200)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for name, run, tolerance in (
        (f"{arguments.steps} training steps", training_steps(arguments.steps, _POINTS), STEPS),
        (f"{arguments.programs} programs", programs(arguments.programs, _POINTS), PROGRAMS),
    ):
        print(f"{name} with asynchronous loading; MiB may grow by {tolerance}")
        seen = []
        for usage in run:
            print({what: round(number, 1) for what, number in usage.items()}, flush=True)
            seen.append(usage)
        found += grown(seen[0], seen[-1], tolerance)
    print("grew: " + "; ".join(found) if found else "nothing grew beyond the tolerance")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
