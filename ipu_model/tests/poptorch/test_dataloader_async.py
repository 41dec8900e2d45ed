"""`poptorch.DataLoader` in every mode, the asynchronous ones above all (data reference, sections 2.4 to 2.8)."""

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
from loading_datasets import Dicts, Lengths, Numbers, Pairs, Stream, nothing, pad, row, with_count
from torch.utils.data import BatchSampler, SequentialSampler, get_worker_info

from ipu_model.errors import Error
from poptorch._dataloader import DataLoader
from poptorch._dataloader.worker import _forget_fork_server
from poptorch._utils import ICustomArgParser, registerCustomArgParser
from poptorch.enums import DataLoaderMode, SharingStrategy
from poptorch.options import Options

FORK = {"sharing_strategy": SharingStrategy.Fork}
SYNC, ASYNC, REBATCHED = DataLoaderMode.Sync, DataLoaderMode.Async, DataLoaderMode.AsyncRebatched

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
Make = Callable[..., DataLoader]


@pytest.fixture
def load() -> Iterator[Make]:
    """Makes loaders, asynchronous unless told otherwise, that end with the test."""
    made: list[DataLoader] = []

    def make(dataset: Any, device_iterations: int = 1, **arguments: Any) -> DataLoader:
        opts = Options().deviceIterations(device_iterations)
        made.append(DataLoader(opts, dataset, **{"mode": ASYNC, "async_options": FORK, **arguments}))
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
    mode=st.sampled_from([ASYNC, REBATCHED]), worker_size=st.none() | st.integers(1, 4),
)  # fmt: skip
def test_items_and_lengths_are_those_of_a_synchronous_loader(
    n: int, b: int, d: int, drop: bool, mode: DataLoaderMode, worker_size: int | None
) -> None:
    opts, combined = Options().deviceIterations(d), b * d
    synchronous = DataLoader(opts, Pairs(n), batch_size=b, drop_last=drop)
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
    [*((ASYNC, strategy) for strategy in SharingStrategy), (REBATCHED, SharingStrategy.ForkServer)],
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


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_lists_dicts_and_single_samples(load: Make, mode: DataLoaderMode) -> None:
    (images,) = load(Pairs(4), batch_size=4, mode=mode)
    assert isinstance(images, list)
    assert [tuple(x.shape) for x in images] == [(4, 3, 4, 4), (4,)]
    (item,) = load(Dicts(4), batch_size=4, mode=mode)
    assert list(item) == ["y", "x"]
    assert item["y"].tolist() == [0, 1, 2, 3]
    loader = load(Numbers(3), batch_size=None, mode=mode)
    assert [x.tolist() for x in loader] == [[0, 0], [1, 1], [2, 2]]
    assert (len(loader), loader.combinedBatchSize) == (3, None)


def test_an_example_batch_does_not_use_up_the_first_item(load: Make) -> None:
    """next(iter(loader)) for compile(), then a loop: it starts at item 0 (section 4)."""
    loader = load(Numbers(6), batch_size=2)
    assert next(iter(loader))[:, 0].tolist() == [0, 1]
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


class Sample:
    """A custom type with two tensors."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y


class SampleParser(ICustomArgParser):
    def yieldTensors(self, struct: Sample) -> list[torch.Tensor]:
        return [struct.x, struct.y]

    def reconstruct(self, original_structure: Sample, tensor_iterator: Iterator[torch.Tensor]) -> Sample:
        return Sample(next(tensor_iterator), next(tensor_iterator))


def collate_samples(pairs: list[Any]) -> Sample:
    return Sample(*map(torch.stack, zip(*pairs)))


@pytest.mark.parametrize(
    ("mode", "strategy"),
    [(ASYNC, SharingStrategy.Fork), (REBATCHED, SharingStrategy.Fork), (ASYNC, SharingStrategy.ForkServer)],
)
def test_registered_types_arrive_as_themselves(load: Make, mode: DataLoaderMode, strategy: SharingStrategy) -> None:
    registerCustomArgParser(Sample, SampleParser())
    common = {"mode": mode, "async_options": {"sharing_strategy": strategy}}
    try:
        for number, item in enumerate(load(Pairs(10), batch_size=4, collate_fn=collate_samples, **common)):
            assert isinstance(item, Sample)
            assert item.x.shape == (4, 3, 4, 4)
            assert item.y.tolist() == [4 * number + i for i in range(4)]
        assert number == 1
    finally:
        registerCustomArgParser(Sample, None)


TOO_FEW_ROWS = "batch_size should be a positive integer"  # torch's words


@pytest.mark.parametrize(
    ("dataset", "arguments", "error", "words"),
    [
        (Numbers(4, lambda i: (row(i), [row(i)])), {}, Error, r"(?s)is not a torch tensor.*worker thread failed to"),
        (Pairs(10), {"batch_size": 4, "collate_fn": collate_samples}, Error, "is not a torch tensor but a Sample"),
        (Numbers(4), {"batch_size": 2, "mode": REBATCHED, "rebatched_worker_size": 0}, ValueError, TOO_FEW_ROWS),
        (Numbers(4), {"batch_size": 2, "mode": REBATCHED, "rebatched_worker_size": -1}, ValueError, TOO_FEW_ROWS),
    ],
)
def test_mistakes(load: Make, dataset: Any, arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        load(dataset, **arguments)


@pytest.mark.parametrize(
    ("mode", "drop_last", "lengths"),
    [
        # In line, each of four workers has a remainder of its own.
        (SYNC, True, [8] * 4),
        (SYNC, False, [3, 5, 5, 5, 8, 8, 8, 8]),
        (ASYNC, True, [8] * 4),
        (REBATCHED, True, [8] * 6),
        (REBATCHED, False, [2, *[8] * 6]),
        (ASYNC, False, [2, *[8] * 6]),
    ],
)
def test_remainders(load: Make, mode: DataLoaderMode, drop_last: bool, lengths: list[int]) -> None:
    """Section 2.8."""
    arguments: dict[str, Any] = {"num_workers": 4, "mode": mode, "drop_last": drop_last, "worker_init_fn": nothing}
    items = copies(load(Stream(50), batch_size=8, **arguments))
    assert sorted(map(len, items)) == lengths
    assert mode is SYNC or [len(item) for item in items[:-1]] == lengths[1:]
    samples = torch.cat(items).tolist()
    assert len(set(samples)) == len(samples) == sum(lengths)


@pytest.mark.parametrize("mode", list(DataLoaderMode))
@pytest.mark.parametrize("drop_last", [True, False])
def test_batch_samplers_work_in_every_mode(load: Make, mode: DataLoaderMode, drop_last: bool) -> None:
    """Section 2.7."""
    sampler = BatchSampler(SequentialSampler(range(20)), batch_size=2, drop_last=True)
    loader = load(Pairs(20), 4, batch_sampler=sampler, drop_last=drop_last, mode=mode)
    expected = [list(range(8)), list(range(8, 16)), list(range(16, 20))][: 2 if drop_last else 3]
    for _ in range(2):
        assert [y.tolist() for _, y in copies(loader)] == expected
    assert loader.combinedBatchSize == 8
    assert len(loader) == (10 if mode is SYNC else len(expected))  # in line, the sampler's own length


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_padded_batches_and_scalars(load: Make, mode: DataLoaderMode, caplog: pytest.LogCaptureFixture) -> None:
    loader = load(Numbers(10), 2, batch_sampler=Lengths(3, 4, 1, 2), collate_fn=pad, mode=mode)
    assert [x[:, 0].tolist() for x in loader] == [[0, 1, 2, 0, 3, 4, 5, 6], [7, 0, 0, 0, 8, 9, 0, 0]]
    assert loader.combinedBatchSize == 1 * 2  # a sampler without batch_size counts as 1
    assert "has no length" in caplog.text
    # Only items of several batches need rows in every tensor.
    loader = load(Numbers(4), batch_sampler=Lengths(2, 2), collate_fn=with_count, mode=mode)
    assert [(x[:, 0].tolist(), int(count)) for x, count in loader] == [([0, 1], 2), ([2, 3], 2)]


def test_a_distributed_loader_loads_its_share_in_the_background() -> None:
    opts = Options().deviceIterations(2).randomSeed(42)
    opts.Distributed.configureProcessId(1, 2)
    loader = DataLoader(opts, Numbers(10), shuffle=True, mode=ASYNC, async_options=FORK)
    generator = torch.Generator().manual_seed(42)
    first, second = (torch.randperm(10, generator=generator).tolist() for _ in range(2))
    assert torch.cat(copies(loader))[:, 0].tolist() == first[6:10]
    assert torch.cat(copies(loader))[:, 0].tolist() == second[4:8]
    loader.terminate()


def with_noise(index: int) -> torch.Tensor:
    """Return a sample to which the worker that loads it adds noise."""
    assert get_worker_info() is not None
    return row(index) + torch.rand(2)


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
    common = {"batch_size": 2, "shuffle": "sampler" not in more, "num_workers": 2, **more}
    plain, own = (torch.Generator().manual_seed(3) for _ in range(2))
    expected = torch.utils.data.DataLoader(Numbers(8, with_noise), drop_last=True, generator=plain, **common)
    loader = load(Numbers(8, with_noise), mode=mode, generator=own, **common)
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
