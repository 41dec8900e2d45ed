"""`poptorch.DataLoader` in the asynchronous modes (data reference, sections 2.4 to 2.8)."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loading_datasets import (
    Dicts,
    Lengths,
    Nested,
    Numbers,
    Pairs,
    Sample,
    SampleParser,
    Stream,
    collate_samples,
    nothing,
    pad,
    with_count,
)
from torch.utils.data import BatchSampler, SequentialSampler, get_worker_info

from ipu_model.errors import Error
from poptorch._dataloader import DataLoader
from poptorch._dataloader.worker import _forget_fork_server
from poptorch._utils import registerCustomArgParser
from poptorch.enums import DataLoaderMode, SharingStrategy
from poptorch.options import Options

FORK = {"sharing_strategy": SharingStrategy.Fork}
ASYNCHRONOUS = [DataLoaderMode.Async, DataLoaderMode.AsyncRebatched]

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
Make = Callable[..., DataLoader]


@pytest.fixture
def load() -> Iterator[Make]:
    """Makes asynchronous loaders that end with the test."""
    made: list[DataLoader] = []

    def make(dataset: Any, device_iterations: int = 1, **arguments: Any) -> DataLoader:
        opts = Options()
        opts.deviceIterations(device_iterations)
        defaults = {"mode": DataLoaderMode.Async, "async_options": FORK}
        made.append(DataLoader(opts, dataset, **{**defaults, **arguments}))
        return made[-1]

    yield make
    for loader in made:
        loader.terminate()


def copies(loader: DataLoader) -> list[Any]:
    """Return the items of one pass, cloned out of shared memory."""
    return [[x.clone() for x in item] if isinstance(item, list) else item.clone() for item in loader]


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 30), b=st.integers(1, 4), d=st.integers(1, 3), drop=st.booleans(),
    mode=st.sampled_from(ASYNCHRONOUS), worker_size=st.none() | st.integers(1, 4),
)  # fmt: skip
def test_items_and_lengths_are_those_of_a_synchronous_loader(
    n: int, b: int, d: int, drop: bool, mode: DataLoaderMode, worker_size: int | None
) -> None:
    opts = Options()
    opts.deviceIterations(d)
    synchronous = DataLoader(opts, Pairs(n), batch_size=b, drop_last=drop)
    combined = b * d
    arguments: dict[str, Any] = {"batch_size": b, "drop_last": drop, "mode": mode, "async_options": FORK}
    if worker_size is not None:
        arguments["rebatched_worker_size"] = min(worker_size, combined)
    if drop and n < combined:
        with pytest.raises(Error, match=r"(?s)The Dataset is empty.*worker thread failed to start"):
            DataLoader(opts, Pairs(n), **arguments)
        return
    loader = DataLoader(opts, Pairs(n), **arguments)
    try:
        for _ in range(2):
            for got, expected in zip(copies(loader), list(synchronous), strict=True):
                assert [x.tolist() for x in got] == [x.tolist() for x in expected]
        assert len(loader) == len(synchronous)
        assert (loader.combinedBatchSize, loader.batch_size) == (combined, combined)
    finally:
        loader.terminate()


@pytest.mark.parametrize(
    ("mode", "strategy"),
    [(DataLoaderMode.Async, strategy) for strategy in SharingStrategy]
    + [(DataLoaderMode.AsyncRebatched, SharingStrategy.ForkServer)],
)
def test_every_strategy_and_mode_delivers_the_same(load: Make, mode: DataLoaderMode, strategy: SharingStrategy) -> None:
    options = {"sharing_strategy": strategy, "early_preload": True, "buffer_size": 2}
    loader = load(Pairs(11), device_iterations=2, batch_size=2, mode=mode, async_options=options)
    for _ in range(2):
        assert [y.tolist() for _, y in copies(loader)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_shuffling_follows_the_programs_seed(load: Make) -> None:
    torch.manual_seed(8)
    expected = [x.tolist() for x in DataLoader(Options(), Numbers(20), batch_size=4, shuffle=True)]
    torch.manual_seed(8)
    loader = load(Numbers(20), batch_size=4, shuffle=True)
    first, second = copies(loader), copies(loader)
    assert [x.tolist() for x in first] == expected
    assert [x.tolist() for x in second] != expected
    assert sorted(torch.cat(second)[:, 0].tolist()) == list(range(20))


def test_dicts_and_single_samples(load: Make) -> None:
    (item,) = load(Dicts(4), batch_size=4)
    assert list(item) == ["y", "x"]
    assert item["y"].tolist() == [0, 1, 2, 3]
    loader = load(Numbers(3), batch_size=None)
    assert [x.tolist() for x in loader] == [[0, 0], [1, 1], [2, 2]]
    assert (len(loader), loader.combinedBatchSize) == (3, None)


def test_an_example_batch_does_not_use_up_the_first_item(load: Make) -> None:
    # next(iter(loader)) for compile(), then a loop: it starts at item 0 (section 4).
    loader = load(Numbers(6), batch_size=2)
    example = next(iter(loader))
    assert example[:, 0].tolist() == [0, 1]
    assert [x[:, 0].tolist() for x in loader] == [[0, 1], [2, 3], [4, 5]]


def test_the_loader_works_with_torch_workers_of_its_own(load: Make) -> None:
    loader = load(Numbers(21), batch_size=4, num_workers=2, async_options={})
    for _ in range(3):
        assert [x[:, 0].tolist() for x in copies(loader)] == [list(range(i, i + 4)) for i in range(0, 20, 4)]


def test_a_terminated_loader_is_over(load: Make) -> None:
    loader = load(Numbers(6), batch_size=2)
    loader.terminate()
    loader.terminate()
    with pytest.raises(AssertionError, match="terminated"):
        iter(loader)
    assert len(loader) == 3


@pytest.mark.parametrize(
    ("dataset", "arguments", "error", "words"),
    [
        (Nested(4), {}, Error, r"(?s)is not a torch tensor.*worker thread failed to start"),
        (Pairs(10), {"batch_size": 4, "collate_fn": collate_samples}, Error, "is not a torch tensor but a Sample"),
        *(
            (
                Numbers(4),
                {"batch_size": 2, "mode": DataLoaderMode.AsyncRebatched, "rebatched_worker_size": rows},
                ValueError,
                "batch_size should be a positive integer",  # torch's words
            )
            for rows in (0, -1)
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused(
    load: Make, dataset: Any, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        load(dataset, **arguments)


# Streams divided over four workers as 13, 13, 13, 11 samples, in items of 8 (section 2.8).


@pytest.mark.parametrize(
    ("mode", "drop_last", "lengths"),
    [
        (DataLoaderMode.Async, True, [8] * 4),
        (DataLoaderMode.AsyncRebatched, True, [8] * 6),
        (DataLoaderMode.AsyncRebatched, False, [8] * 6 + [2]),
        (DataLoaderMode.Async, False, [8] * 6 + [2]),
    ],
)
def test_remainders_of_a_divided_stream(load: Make, mode: DataLoaderMode, drop_last: bool, lengths: list[int]) -> None:
    arguments: dict[str, Any] = {"num_workers": 4, "mode": mode, "drop_last": drop_last, "worker_init_fn": nothing}
    items = copies(load(Stream(50), batch_size=8, **arguments))
    assert [len(x) for x in items] == lengths
    samples = torch.cat(items).tolist()
    assert len(set(samples)) == len(samples) == sum(lengths)


# Batch samplers (section 2.7).


@pytest.mark.parametrize("mode", list(DataLoaderMode))
@pytest.mark.parametrize(("drop_last", "groups"), [(True, 2), (False, 3)])
def test_batch_samplers_work_in_every_mode(load: Make, mode: DataLoaderMode, drop_last: bool, groups: int) -> None:
    sampler = BatchSampler(SequentialSampler(range(20)), batch_size=2, drop_last=True)
    loader = load(Pairs(20), 4, batch_sampler=sampler, drop_last=drop_last, mode=mode)
    for _ in range(2):
        expected = [list(range(8)), list(range(8, 16)), list(range(16, 20))][:groups]
        assert [y.tolist() for _, y in copies(loader)] == expected
    assert loader.combinedBatchSize == 8
    assert len(loader) == (10 if mode is DataLoaderMode.Sync else groups)


def test_batches_may_be_padded_and_carry_a_scalar(load: Make) -> None:
    loader = load(Numbers(10), 2, batch_sampler=Lengths(3, 4, 1, 2), collate_fn=pad)
    assert [x[:, 0].tolist() for x in loader] == [[0, 1, 2, 0, 3, 4, 5, 6], [7, 0, 0, 0, 8, 9, 0, 0]]
    # Only items of several batches need rows in every tensor.
    loader = load(Numbers(4), batch_sampler=Lengths(2, 2), collate_fn=with_count)
    assert [(x[:, 0].tolist(), int(count)) for x, count in loader] == [([0, 1], 2), ([2, 3], 2)]


# Custom types (section 2.4).


@pytest.mark.parametrize(
    ("mode", "strategy"),
    [*((mode, SharingStrategy.Fork) for mode in ASYNCHRONOUS), (DataLoaderMode.Async, SharingStrategy.ForkServer)],
)
def test_registered_types_arrive_as_themselves(load: Make, mode: DataLoaderMode, strategy: SharingStrategy) -> None:
    registerCustomArgParser(Sample, SampleParser())
    try:
        loader = load(
            Pairs(10), batch_size=4, collate_fn=collate_samples, mode=mode,
            async_options={"sharing_strategy": strategy},
        )  # fmt: skip
        for number, item in enumerate(loader):
            assert isinstance(item, Sample)
            assert item.x.shape == (4, 3, 4, 4)
            assert item.y.tolist() == [4 * number + i for i in range(4)]
        assert number == 1
    finally:
        registerCustomArgParser(Sample, None)


def test_a_distributed_loader_loads_its_share_in_the_background() -> None:
    opts = Options()
    opts.deviceIterations(2)
    opts.randomSeed(42)
    opts.Distributed.configureProcessId(1, 2)
    loader = DataLoader(opts, Numbers(10), shuffle=True, mode=DataLoaderMode.Async, async_options=FORK)
    generator = torch.Generator().manual_seed(42)
    first, second = (torch.randperm(10, generator=generator).tolist() for _ in range(2))
    assert torch.cat(copies(loader))[:, 0].tolist() == first[6:10]
    assert torch.cat(copies(loader))[:, 0].tolist() == second[4:8]
    loader.terminate()


class Augmented(Numbers):
    """Samples to which the worker that loads them adds noise."""

    def __getitem__(self, index: int) -> torch.Tensor:
        assert get_worker_info() is not None
        return super().__getitem__(index) + torch.rand(2)


def other_noise(worker: int) -> None:
    torch.manual_seed(torch.initial_seed() + 10 * worker)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
@pytest.mark.parametrize("mode", list(DataLoaderMode))
@pytest.mark.parametrize(
    "more",
    [
        {"persistent_workers": True, "prefetch_factor": 1, "timeout": 60},
        {"persistent_workers": False, "worker_init_fn": other_noise, "multiprocessing_context": "fork"},
        {"persistent_workers": True, "sampler": [5, 3, 1, 0], "pin_memory": True},
    ],
    ids=["persistent", "init", "sampler"],
)
def test_other_arguments_are_torchs(load: Make, mode: DataLoaderMode, more: dict[str, Any]) -> None:
    """Two passes are those of torch's loader with the same arguments, noise of its workers included."""
    shuffle = "sampler" not in more
    common = {"shuffle": shuffle, "num_workers": 2, **more}
    expected = torch.utils.data.DataLoader(
        Augmented(8), batch_size=2, drop_last=True, generator=torch.Generator().manual_seed(3), **common
    )
    options = {} if mode == DataLoaderMode.Sync else {"async_options": FORK}
    loader = load(
        Augmented(8), batch_size=2, mode=mode, generator=torch.Generator().manual_seed(3), **options, **common
    )
    for _ in range(2):
        torch.testing.assert_close(copies(loader), list(expected), rtol=0, atol=0)


def start_a_worker() -> None:
    """Be a forked loader process whose workers come from a fork server."""
    _forget_fork_server()
    worker = multiprocessing.get_context("forkserver").Process(target=int)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)


def test_workers_of_a_forked_process_may_come_from_a_fork_server() -> None:
    """Also after the program has used one itself, which is no child of the forked process."""
    # Names of multiprocessing below its public API: see `_forget_fork_server`.
    server = vars(forkserver.ForkServer())
    assert {"_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid"} <= server.keys()
    for context, target in (("forkserver", int), ("fork", start_a_worker)):
        process = multiprocessing.get_context(context).Process(target=target)  # type: ignore[attr-defined]
        process.start()
        process.join()
        assert process.exitcode == 0
