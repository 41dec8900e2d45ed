"""`time_loader`: measure on this machine what a program's own data loader costs."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ipu_model.cores import CoreWatch
from ipu_model.errors import Error, checked_count, kind_of

if TYPE_CHECKING:
    from ipu_model.predict.host import HostWork


@dataclass(frozen=True)
class LoaderFacts:
    """How a loader works: whether ahead of the program, worker processes if any, batches ready before they are due."""

    loads_ahead: bool = False
    workers: int = 0
    ready: int = 1


@singledispatch
def facts_of_loader(loader: Any) -> LoaderFacts:
    return LoaderFacts()


@facts_of_loader.register
def facts_of_torchs_loader(loader: DataLoader) -> LoaderFacts:  # type: ignore[type-arg]  # singledispatch needs a class
    """Return how torch's own loader works: each of its workers keeps `prefetch_factor` batches ready."""
    if not loader.num_workers:
        return LoaderFacts()
    return LoaderFacts(workers=loader.num_workers, ready=loader.num_workers * (loader.prefetch_factor or 1))


def time_loader(
    loader: Iterable[Any],
    *,
    batches: int = 10,
    warm_up: int | None = None,
    samples_per_batch: int | None = None,
    most_seconds: float = 20.0,
    clock: Callable[[], float] = time.perf_counter,
) -> HostWork:
    """Time a few batches of a loader on this machine and return what loading costs the host.

    `loader` is a `poptorch.DataLoader`, a loader of torch or any other iterable of batches. A batch has as many samples
    as its first tensor has rows, unless you give `samples_per_batch`. The first `warm_up` batches do not count, so that
    the result is the steady rate: by default these are all that worker processes may have loaded ahead. When a pass
    ends, the next one begins, except for an iterator, which gives what is left of it. No new batch is asked for after
    `most_seconds`.

    Time a loader before or after you train with it, not within a pass: asynchronous loaders, and those with persistent
    workers, then start a new pass. The random numbers of torch, numpy and Python stay as they are; a generator of the
    loader's own moves on. Worker processes end with the measurement, except those that the loader already had.

    The cores of this machine are part of the result. `seconds_per_sample` is the time that one of several workers takes
    while it has a core of its own, so that the model can tell what other numbers of workers would achieve. Raises
    `Error` if the loader is empty or its samples cannot be counted.
    """
    _check(loader, batches, warm_up, samples_per_batch)
    facts = facts_of_loader(loader)
    # Workers deliver their batches about at the same time, so whole rounds of them are timed.
    round_of = max(1, facts.workers)
    counted = -(-batches // round_of) * round_of
    skipped = facts.ready if warm_up is None else warm_up
    with _left_as_it_is(loader):
        arrivals = _arrivals(loader, skipped + counted, samples_per_batch, most_seconds, clock)
    return _host_work(arrivals, skipped, facts)


def _check(loader: object, batches: int, warm_up: int | None, samples_per_batch: int | None) -> None:
    if not isinstance(loader, Iterable):
        raise Error(f"time_loader takes a poptorch.DataLoader or another iterable of batches, not {kind_of(loader)}.")
    counts = (("batches", batches, 1), ("warm_up", warm_up, 0), ("samples_per_batch", samples_per_batch, 1))
    for name, value, least in counts:
        if value is not None or name == "batches":
            checked_count(f"time_loader: {name}", value, least)


def _arrivals(
    loader: Iterable[Any], wanted: int, samples: int | None, most_seconds: float, clock: Callable[[], float]
) -> list[tuple[float, int]]:
    """Return when up to `wanted` batches were there, with their samples; first the start, without samples."""
    arrivals = [(clock(), 0)]
    with contextlib.closing(_passes(loader)) as batches:
        for batch in batches:
            arrivals.append((clock(), samples or _samples(batch)))
            if len(arrivals) > wanted or arrivals[-1][0] - arrivals[0][0] > most_seconds:
                break
    if len(arrivals) == 1:
        raise Error(
            "The loader is empty, so there is nothing to time. A poptorch.DataLoader drops samples that do not fill a "
            "whole call of batch_size x deviceIterations x gradientAccumulation x replicas samples. Time it with "
            "smaller counts, or with more data."
        )
    return arrivals


def _passes(loader: Iterable[Any]) -> Generator[Any, None, None]:
    nothing = object()
    batch = None
    while batch is not nothing:
        batch = nothing
        for batch in loader:
            yield batch


def _samples(batch: object) -> int:
    """Return the number of rows of the first tensor that has any, as `Program.samples_per_micro_batch` does."""
    shapes = list(_shapes(batch))
    if not shapes:
        raise Error(
            f"The loader yields {kind_of(batch)} without a tensor, so its samples cannot be counted. Say how many "
            "samples a batch has: time_loader(loader, samples_per_batch=N). Commands take its seconds_per_sample as "
            "--seconds-per-sample."
        )
    return next((shape[0] for shape in shapes if shape), 1)


def _shapes(batch: object) -> Iterator[tuple[int, ...]]:
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        yield tuple(batch.shape)
    elif isinstance(batch, (tuple, list, Mapping)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _shapes(part)


def _host_work(arrivals: list[tuple[float, int]], skipped: int, facts: LoaderFacts) -> HostWork:
    """Return the work of the batches after the first `skipped`, or of the last one if there are no more."""
    # Imported here so that `import poptorch`, which only registers its loaders, does not load the performance model.
    from ipu_model.predict.host import HostWork, Loading

    first = min(skipped, len(arrivals) - 2)
    counted = [samples for _, samples in arrivals[first + 1 :]]
    samples = sum(counted)
    if not samples:
        raise Error("The batches of the loader have no rows, so the time of a sample cannot be measured.")
    seconds = max(0.0, arrivals[-1][0] - arrivals[first][0]) / samples
    cores = CoreWatch().cores().at_once
    workers_at_once = min(max(1, facts.workers), cores)
    of_batches = f"{len(counted)} batch{'es' * (len(counted) > 1)} of {counted[-1]} samples"
    return HostWork(
        seconds_per_sample=seconds * workers_at_once,
        loading=Loading.ASYNC if facts.loads_ahead else Loading.SYNC,
        workers=facts.workers,
        source=f"measured here: {of_batches}, {cores} core{'s' * (cores > 1)}",
        cores_per_host=cores,
    )


@contextlib.contextmanager
def _left_as_it_is(loader: object) -> Iterator[None]:
    """Put random numbers back, so that training afterwards is not affected, and end worker processes that are new."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    new_workers = loader if isinstance(loader, DataLoader) and loader._iterator is None else None
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            if new_workers is not None:
                # There is no public way to end persistent ones. The loader starts new ones with its next pass.
                new_workers._iterator = None
            random.setstate(of_python)
            np.random.set_state(of_numpy)
