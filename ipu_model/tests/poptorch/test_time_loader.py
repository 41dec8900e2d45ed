"""`ipu_model.time_loader` measures what a program's own loader costs, with a clock that the data sets move."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from executor_support import quiet
from loading_datasets import Numbers, Pairs, Slow, Stream, loader_processes
from torch import Tensor, nn
from torch.utils.data import DataLoader

import ipu_model
import poptorch
from ipu_model.cores import CoreWatch
from ipu_model.errors import Error
from ipu_model.explore.loader import LoaderFacts, facts_of_loader
from ipu_model.predict.host import Loading

SECONDS = 2**-7
"""That a sample takes on the clock: a power of two, so that sums are exact."""

ASYNC, REBATCHED = poptorch.DataLoaderMode.Async, poptorch.DataLoaderMode.AsyncRebatched
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Clock:
    """A clock that stands still unless something moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def samples(self, length: int, start_up: float = 0.0) -> Numbers:
        """Return a data set whose samples take `SECONDS`, and the first one `start_up` seconds more."""
        extra = iter([start_up])

        def sample(index: int) -> Tensor:
            self.now += SECONDS + next(extra, 0.0)
            return torch.zeros(3, 4)

        return Numbers(length, sample)

    def pairs(self, *given: Any) -> DataLoader[Any]:
        return DataLoader(self.samples(*given), batch_size=2)

    def items(self, *items: Any) -> Iterator[Any]:
        for item in items:
            self.now += 6.0
            yield item


PAIR = torch.zeros(()), torch.zeros(4, 2)
TWO, MANY = quiet(deviceIterations=2), quiet(accumulation=3, deviceIterations=2, replicationFactor=4)


@pytest.mark.parametrize(
    ("loader", "asked", "seconds", "counted"),
    [
        # One item of 2 x 3 x 4 micro-batches of 5 rows takes 120 times as long as a sample.
        (
            lambda clock: poptorch.DataLoader(MANY, clock.samples(1000), batch_size=5),
            {"batches": 4},
            SECONDS,
            "4 batches of 120 samples",
        ),
        # What only the first batch takes is warm-up, unless there is none.
        (lambda clock: clock.pairs(100, 50.0), {"most_seconds": 1e3}, SECONDS, "10 batches of 2 samples"),
        (lambda clock: clock.pairs(100, 1.0), {"batches": 2, "warm_up": 0}, SECONDS + 1.0 / 4, "2 batches"),
        # A short data set is read again: batches of two samples and of one.
        (lambda clock: clock.pairs(3), {"batches": 20}, SECONDS, "20 batches"),
        # An iterator gives what it has, and a single batch is better than nothing.
        (lambda clock: clock.items(PAIR, PAIR, PAIR), {}, 1.5, "2 batches of 4 samples"),
        (lambda clock: iter(clock.pairs(2)), {"warm_up": 5}, SECONDS, "1 batch of 2 samples"),
        # Of batches of two samples, the first that ends after the time of twelve is the seventh; one is warm-up.
        (lambda clock: clock.pairs(1000), {"batches": 100, "most_seconds": 12 * SECONDS}, SECONDS, "6 batches"),
        # Items without tensors have as many samples as the caller says.
        (lambda clock: clock.items(*["words"] * 20), {"samples_per_batch": 8}, 0.75, "of 8 samples"),
    ],
)
def test_seconds_per_sample(loader: Any, asked: dict[str, Any], seconds: float, counted: str) -> None:
    clock = Clock()
    work = ipu_model.time_loader(loader(clock), clock=clock, **asked)
    assert work.seconds_per_sample == seconds
    assert work.source.startswith("measured here: ")
    assert counted in work.source


def test_loading_of_the_model_takes_as_long_as_the_measurement() -> None:
    """A call takes longer by the time of one item, which is loaded before the device begins."""
    clock = Clock()
    work = ipu_model.time_loader(poptorch.DataLoader(TWO, clock.samples(100), batch_size=3), clock=clock)
    program = nn.Linear(4, 4), torch.zeros(6, 3, 4), TWO
    with_it, without = ipu_model.profile_module(*program, host=work), ipu_model.profile_module(*program)
    assert with_it.call_seconds - without.call_seconds == pytest.approx(6 * SECONDS)


@pytest.mark.parametrize(
    ("loader", "samples"),
    [
        ([torch.zeros(6, 2)], 6), ([np.zeros((5, 2))], 5), ([[torch.zeros(()), torch.zeros(4)]], 4),
        ([{"labels": torch.zeros(3), "x": torch.zeros(3, 9)}], 3), ([((torch.zeros(2, 2),), "name")], 2),
        ([torch.zeros(())], 1), (poptorch.DataLoader(TWO, Stream(50), batch_size=4), 8),
    ],
)  # fmt: skip
def test_samples_are_the_rows_of_the_first_tensor_with_any(loader: Any, samples: int) -> None:
    assert f"of {samples} samples" in ipu_model.time_loader(loader, batches=3).source


def test_a_plain_iterable_loads_when_asked_and_workers_keep_batches_ready() -> None:
    """torch's documentation: prefetch_factor is 2 by default where there are workers."""
    assert facts_of_loader([torch.zeros(1)]) == LoaderFacts(loads_ahead=False, workers=0, ready=1)
    loader = DataLoader(Numbers(8), num_workers=3)
    assert facts_of_loader(loader) == LoaderFacts(loads_ahead=False, workers=3, ready=6)
    more = poptorch.DataLoader(quiet(), Numbers(8), num_workers=2, prefetch_factor=5)
    assert facts_of_loader(more) == LoaderFacts(loads_ahead=False, workers=2, ready=10)


@pytest.mark.parametrize("mode", [ASYNC, REBATCHED, None])
def test_an_asynchronous_loader_or_accessor_may_have_a_full_ring(mode: poptorch.DataLoaderMode | None) -> None:
    if mode is None:
        loader: Any = poptorch.AsynchronousDataAccessor(DataLoader(Pairs(64), batch_size=8), buffer_size=5)
    else:
        loader = poptorch.DataLoader(quiet(), Pairs(64), batch_size=8, mode=mode, async_options={"buffer_size": 5})
    with closing(SimpleNamespace(close=loader.terminate)):
        assert facts_of_loader(loader) == LoaderFacts(loads_ahead=True, workers=0, ready=6)
        work = ipu_model.time_loader(loader, batches=3)
        assert (work.loading, work.workers) == (Loading.ASYNC, 0)
        assert "3 batches of 8 samples" in work.source


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_several_workers_are_turned_into_the_time_of_one(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four workers on few cores share them; the model divides by workers and multiplies by workers per core."""
    monkeypatch.setattr(CoreWatch, "cores", lambda watch: SimpleNamespace(at_once=cores))
    loader = DataLoader(Numbers(64), batch_size=2, num_workers=4, persistent_workers=True)
    work = ipu_model.time_loader(loader, clock=itertools.count(1.0).__next__, batches=4)
    assert work.cores_per_host == cores
    # The clock moves by a second for each batch of two samples: half a second per sample with four workers.
    profile = ipu_model.profile_module(nn.Linear(2, 2), torch.zeros(2, 2), quiet(), host=work)
    assert profile.call_seconds == pytest.approx(1.0)


@pytest.mark.parametrize("more", [{"num_workers": 1}, {"mode": ASYNC}])
def test_a_loader_begins_again_afterwards(more: dict[str, Any]) -> None:
    before = len(loader_processes())
    loader = poptorch.DataLoader(quiet(), Numbers(8), batch_size=2, **more)
    ipu_model.time_loader(loader, batches=2)
    assert "mode" in more or loader._iterator is None  # torch's workers end with their iterator
    assert [int(batch[0, 0]) for batch in loader] == [0, 2, 4, 6]
    loader.terminate()
    assert len(loader_processes()) == before


def test_training_afterwards_sees_the_same_random_numbers() -> None:
    """A data set draws from every generator of random numbers that augmentations use."""

    def draw(index: int = 0) -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    drawn = []
    for prepare in (tuple, lambda: ipu_model.time_loader(DataLoader(Numbers(8, draw), shuffle=True), batches=3)):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        prepare()
        drawn.append(draw())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("loader", "asked", "words"),
    [
        ([], {}, r"loader is empty.*batch_size x deviceIterations"),
        (DataLoader(Numbers(3), batch_size=4, drop_last=True), {}, "loader is empty"),
        (5, {}, r"takes a poptorch\.DataLoader or another iterable of batches, not an int"),
        (["text"], {}, r"a str without a tensor.*samples_per_batch=N"),
        ([torch.zeros(0, 2)], {"batches": 3}, "no rows"),
        ([torch.zeros(1)], {"batches": 0}, "batches must be a whole number from 1 on, not 0"),
        ([torch.zeros(1)], {"warm_up": -1}, "warm_up must be a whole number from 0 on, not -1"),
        ([torch.zeros(1)], {"samples_per_batch": 1.5}, "samples_per_batch must be a whole number from 1 on, not 1.5"),
    ],
)
def test_mistakes(loader: Any, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(Error, match=words):
        ipu_model.time_loader(loader, **asked)


def test_an_error_of_the_data_set_is_the_programs_own() -> None:
    with pytest.raises(KeyError, match="0"):
        ipu_model.time_loader(map({}.__getitem__, [0]))


def test_the_clock_is_the_real_one_by_default() -> None:
    assert ipu_model.time_loader(DataLoader(Slow(4, 0.02)), batches=2).seconds_per_sample >= 0.02
