"""`AsynchronousDataAccessor`: passes, restarts, prefetching, items, the way of a data set (data reference, 3.1 to 3.4).

Most tests use `SharingStrategy.Fork`; the protocol is the same for all.
"""

from __future__ import annotations

import copy
import multiprocessing
import multiprocessing.forkserver
import pickle
import sys
import tracemalloc
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loading_datasets import Dice, Numbers, Pairs, Slow, Threads, access, counter, stay_idle, wait_for
from torch import Tensor

from ipu_model.errors import Error
from poptorch._dataloader import AsynchronousDataAccessor, DataLoader
from poptorch._dataloader.items import Ring, SharedFile, Transfer
from poptorch.enums import DataLoaderMode, SharingStrategy
from poptorch.options import Options


def read(accessor: AsynchronousDataAccessor) -> list[int]:
    """Return one pass over items that are single numbers, or rows of a repeated number."""
    return [int(item.flatten()[0]) for item in accessor]


class Passes:
    """Makes tensors of numbers, and counts in shared memory how often that was started."""

    def __init__(self, numbers: Any, counter: Any) -> None:
        self.numbers, self.counter = numbers, counter

    def __iter__(self) -> Iterator[Tensor]:
        with self.counter.get_lock():
            self.counter.value += 1
        return map(torch.tensor, self.numbers)


class Counted(Numbers):
    def __init__(self, length: int, counter: Any) -> None:
        super().__init__(length)
        self.counter, self.tensors = counter, [torch.full((2,), float(index)) for index in range(length)]

    def __getitem__(self, index: int) -> Tensor:
        with self.counter.get_lock():
            self.counter.value += 1
        return self.tensors[index]


@settings(max_examples=15, deadline=None)
@given(
    length=st.integers(1, 7), buffer_size=st.integers(1, 4), ahead=st.booleans(), early=st.booleans(),
    stops=st.lists(st.integers(0, 8), max_size=4),
)  # fmt: skip
def test_every_iterator_sees_the_data_from_the_start_in_order(
    length: int, buffer_size: int, ahead: bool, early: bool, stops: list[int]
) -> None:
    how = {"buffer_size": buffer_size, "load_indefinitely": ahead, "early_preload": early}
    accessor = access(Passes(range(length), counter()), **how)
    # Taking `stop` items and iterating again is a restart, or the next pass if the end was seen.
    for stop in stops:
        taken = [int(item) for item, _ in zip(accessor, range(stop))]  # zip is what stops early
        assert taken == list(range(min(stop, length)))
    assert read(accessor) == list(range(length))
    assert read(accessor) == list(range(length))


def test_it_is_its_own_iterator_and_the_end_is_the_end_until_asked_again() -> None:
    """A data set ends at its length, where Python's own iteration over __getitem__ would go on."""
    accessor = access(Numbers(2))
    assert iter(accessor) is accessor
    assert len(accessor) == 2
    assert read(accessor) == [0, 1]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(accessor)
    assert read(accessor) == [0, 1]
    assert read(access([torch.tensor(i) for i in (3, 1, 2)])) == [3, 1, 2]  # a plain list will do


def test_passes_start_when_they_are_asked_for_if_told_so() -> None:
    passes = counter()
    accessor = access(Passes(range(5), passes), load_indefinitely=False)
    for _ in range(3):
        iter(accessor)  # asking again loads nothing twice
    for number in range(1, 4):
        assert read(accessor) == [0, 1, 2, 3, 4]
        assert passes.value == number
    iter(accessor)
    assert [int(next(accessor)) for _ in range(2)] == [0, 1]
    assert read(accessor) == [0, 1, 2, 3, 4]  # a pass that was broken off is started anew
    accessor.terminate()
    assert passes.value == 5


def test_the_next_pass_starts_before_it_is_asked_for() -> None:
    passes = counter()
    accessor = access(Passes(range(2), passes))
    assert read(accessor) == [0, 1]
    wait_for(lambda: passes.value >= 2)


@pytest.mark.parametrize(
    ("arguments", "taken", "loaded"),
    [
        ({}, 0, 1),  # only the first item is loaded before the first iterator
        ({"buffer_size": 4, "early_preload": True}, 0, 4),
        ({"buffer_size": 3}, 1, 3),  # three slots: the one in use and two more
    ],
)
def test_the_ring_is_filled_and_no_more(arguments: dict[str, Any], taken: int, loaded: int) -> None:
    samples = counter()
    accessor = access(Counted(9, samples), **arguments)
    for number in range(taken):
        assert next(accessor).tolist() == [number, number]
    wait_for(lambda: samples.value == loaded)
    stay_idle()
    assert samples.value == loaded


def test_items_are_views_until_the_next_one() -> None:
    accessor = access(Numbers(3), buffer_size=1)
    view = next(accessor)
    kept = view.clone()
    # The only slot is written again before the next item can come.
    assert next(accessor).tolist() == [1, 1]
    assert view.tolist() == [1, 1]
    assert kept.tolist() == [0, 0]


def test_a_restart_leaves_the_item_in_use_alone() -> None:
    samples = counter()
    accessor = access(Counted(9, samples), buffer_size=2)
    next(accessor)
    view = next(accessor)
    wait_for(lambda: samples.value == 3)
    iter(accessor)
    # Item 0 goes into the other slot; item 1 has none to go to.
    wait_for(lambda: samples.value == 4)
    assert view.tolist() == [1, 1]
    assert next(accessor).tolist() == [0, 0]


def test_data_that_can_be_read_only_once() -> None:
    tries = counter()
    accessor = access(Passes(iter(range(4)), tries))
    assert read(accessor) == [0, 1, 2, 3]
    assert read(accessor) == []
    assert read(accessor) == []
    # One pass more may have begun ahead of time, but an empty one is not repeated unasked.
    stay_idle()
    assert tries.value <= 4


def test_items_keep_types_and_bits_and_tuples_come_out_as_lists() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.uint8, torch.int32, torch.complex64)
    expected = [tuple(torch.tensor(bits).to(dtype) for dtype in dtypes) for bits in ([[0, 1, 1]], [[1, 0, 1]])]
    keyed = [{"y": first, "x": second} for first, second, *_ in expected]
    for item, pair, wanted in zip(access(expected), access(keyed), expected, strict=True):
        assert isinstance(item, list)
        assert [(x.dtype, x.shape, x.tolist()) for x in item] == [(x.dtype, x.shape, x.tolist()) for x in wanted]
        assert [(key, x.tolist()) for key, x in pair.items()] == [("y", wanted[0].tolist()), ("x", wanted[1].tolist())]


def test_unusual_tensors_arrive_as_ordinary_ones() -> None:
    transposed = torch.arange(6.0).view(2, 3).T
    (item,) = access([(transposed, torch.ones(2, requires_grad=True), torch.zeros(0, 3), torch.tensor(5))])
    assert torch.equal(item[0], transposed)
    assert not item[1].requires_grad
    assert (item[2].shape, item[3].shape) == ((0, 3), ())
    # Slots do not remember how samples were computed.
    ring = Ring(SharedFile(), ((torch.Size([2]), torch.float32),), slots=1)
    ring.write(0, [[torch.ones(2, requires_grad=True) * 2]], by_rows=False)
    (written,) = ring.read(0, None)
    assert (written.tolist(), written.requires_grad) == ([2, 2], False)


def test_whole_items_are_glued_and_the_rest_is_dropped_unless_the_loader_keeps_it() -> None:
    """10 samples in batches of 4, 4, 2 become three items of 3 rows; 4 * 3 // 3 is what len() says."""
    accessor = access(torch.utils.data.DataLoader(Pairs(10), batch_size=4), rebatched_size=3)
    for _ in range(2):
        assert [y.tolist() for _, y in accessor] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert len(accessor) == 3 * 4 // 3
    keeping = DataLoader(Options(), Pairs(10), batch_size=4, drop_last=False)
    items = [y.tolist() for _, y in access(keeping, rebatched_size=3)]
    assert items == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    with pytest.raises(TypeError, match="batch_size"):
        len(access([torch.zeros(2, 3)] * 3, rebatched_size=4))
    with pytest.raises(AssertionError, match="only works if 'rebatched_size' is specified too"):
        access(DataLoader(Options(), Numbers(5), batch_size=2, drop_last=False))
    # Single rows are never short.
    assert read(access(DataLoader(Options(), Numbers(3), batch_size=1, drop_last=False))) == [0, 1, 2]


def test_an_accessor_belongs_to_the_process_that_made_it_and_is_not_wrapped_again() -> None:
    accessor = access(Numbers(2))
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot pickle or copy an 'AsynchronousDataAccessor' object"):
            duplicate(accessor)
    with pytest.raises(Error, match="The dataset is an AsynchronousDataAccessor itself"):
        access(accessor)
    assert len(list(accessor)) == 2
    fork = {"sharing_strategy": SharingStrategy.Fork}
    with pytest.raises(Error, match="already uses an AsynchronousDataAccessor internally"):
        access(DataLoader(Options(), Numbers(4), mode=DataLoaderMode.Async, async_options=fork))


def test_a_loader_whose_workers_already_ran_can_be_wrapped() -> None:
    """torch keeps persistent workers in a private attribute that cannot be sent to another process."""
    loader = DataLoader(Options(), Numbers(4), batch_size=2, num_workers=1)
    assert len(list(loader)) == 2
    accessor = access(loader, sharing_strategy=SharingStrategy.ForkServer)
    assert read(accessor) == [0, 2]
    with pytest.raises(Error, match=r"worker thread failed to start.*belong to this process"):
        access(loader, sharing_strategy=SharingStrategy.Fork)


def test_the_data_set_is_read_by_one_other_process_on_one_thread() -> None:
    (item,) = access(Threads(1))
    assert item[0] != torch.tensor(multiprocessing.current_process().pid)
    assert item[1] == 1


def test_a_slow_data_set_still_arrives_whole_also_if_the_process_polls_without_pause() -> None:
    assert read(access(Slow(4, 0.02), buffer_size=2, miss_sleep_time_in_ms=0)) == [0, 1, 2, 3]


@pytest.mark.parametrize("strategy", [SharingStrategy.Fork, SharingStrategy.ForkServer])
def test_random_numbers_continue_where_the_program_is(strategy: SharingStrategy) -> None:
    torch.manual_seed(11)
    default, dataset = torch.get_default_dtype(), Dice(3)
    torch.set_default_dtype(torch.float64)
    try:
        accessor = access(dataset, sharing_strategy=strategy)
        expected = torch.stack([dataset[i] for i in range(3)])
        assert torch.equal(torch.stack([item.clone() for item in accessor]), expected)
        assert expected.dtype == torch.float64
    finally:
        torch.set_default_dtype(default)


# How a data set gets into the process: with all that needs care on the way.
BASE = torch.arange(12.0).view(3, 4)
TENSORS = {
    "base": BASE, "view": BASE.T[1:], "leaf": torch.ones(2, requires_grad=True), "empty": torch.zeros(0, 3),
    "parameter": torch.nn.Parameter(torch.full((2,), 3.0)), "conjugate": torch.tensor([1 + 2j]).conj(),
    "half": torch.tensor([1.5], dtype=torch.float16),
}  # fmt: skip
ARRAYS: list[Any] = [
    np.arange(5, dtype=np.int16), np.arange(6.0).reshape(2, 3).T, np.arange(9)[::2], np.zeros((0, 3)), np.array(7),
    np.array(["a", "bc"]), np.array([None, 1], dtype=object), np.array(["2020-01-02"], dtype="datetime64[D]"),
    np.frombuffer(b"read only", dtype=np.uint8),
]  # fmt: skip


def arrived(value: Any, *, on_disk: bool = False) -> Any:
    """Return a value as another process finds it."""
    journey = Transfer(value, SharedFile(on_disk=on_disk))
    other_end = Transfer.__new__(Transfer)
    vars(other_end).update(journey.__getstate__())
    return other_end.open()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("on_disk", [False, True])
def test_values_survive_the_journey(on_disk: bool) -> None:
    sent = {**TENSORS, "sparse": torch.eye(3).to_sparse(), "arrays": ARRAYS, "text": "unchanged"}
    got = arrived(sent, on_disk=on_disk)
    assert list(got) == list(sent)
    for key, tensor in TENSORS.items():
        assert torch.equal(got[key], tensor), key
        assert (got[key].dtype, got[key].stride()) == (tensor.dtype, tensor.stride()), key
        assert got[key].requires_grad == tensor.requires_grad, key
    assert type(got["parameter"]) is torch.nn.Parameter
    assert torch.equal(got["sparse"].to_dense(), torch.eye(3))
    assert got["text"] == "unchanged"
    for found, array in zip(got["arrays"], ARRAYS, strict=True):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert (found == array).all()
    # It is a copy, in which tensors on the same memory stay on the same memory, and arrays can be written.
    got["base"][0, 1] = 100.0
    assert got["view"][0, 0] == 100.0
    got["arrays"][0][:] = 9
    assert BASE.sum() == sum(range(12))
    assert ARRAYS[0].tolist() == [0, 1, 2, 3, 4]


def test_arrays_do_not_pass_through_memory(tmp_path: Path) -> None:
    """They may be larger than it: of a mapped file, 64 MiB come with less than 8 MiB of Python's own."""
    array = np.memmap(tmp_path / "array", np.float32, "w+", shape=(1 << 24,))
    array[-1] = 5
    tracemalloc.start()
    got = arrived(np.memmap(tmp_path / "array", np.float32, "r"), on_disk=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert got[-1] == 5
    assert peak < 1 << 23


@pytest.mark.parametrize("strategy", [SharingStrategy.ForkServer, SharingStrategy.FileSystem])
def test_data_sets_may_hold_many_tensors_and_locks(strategy: SharingStrategy) -> None:
    """One open file per tensor would be too many: a fork server takes 256 at most."""
    method = "forkserver" if strategy is SharingStrategy.ForkServer else "spawn"
    counter = multiprocessing.get_context(method).Value("i", 0)
    assert read(access(Counted(300, counter), sharing_strategy=strategy)) == list(range(300))
    assert counter.value >= 300


def test_a_data_set_that_cannot_be_sent() -> None:
    local = Numbers(3, lambda index: torch.zeros(1))
    with pytest.raises(Error, match=r"worker thread failed to start.*cannot be sent.*SharingStrategy\.Fork"):
        AsynchronousDataAccessor(local)
    assert len(list(access(local))) == 3


def test_a_data_set_that_means_nothing_to_the_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # Like a class of a notebook cell: only this process knows its module.
    module = types.ModuleType("only_here")
    exec("class Vanishes(list): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(Error, match=r"(?s)cannot rebuild.*No module named 'only_here'.*failed to start"):
        AsynchronousDataAccessor(module.Vanishes([torch.zeros(1)]))


def test_a_file_is_as_long_as_asked_for_and_shared() -> None:
    with pytest.raises(MemoryError, match="more memory than is available"):
        SharedFile().map(1 << 62)
    file = SharedFile()
    one, other = file.map(100), file.map(100)
    file.close()
    one[99] = 5
    assert (len(other), other[99]) == (100, 5)


def test_the_fork_server_keeps_what_the_program_preloads() -> None:
    # The list is private to the standard library: this notices if it moves.
    assert isinstance(multiprocessing.forkserver._forkserver._preload_modules, list)
    accessor = AsynchronousDataAccessor([torch.zeros(1)])
    accessor.terminate()
    assert "__main__" in multiprocessing.forkserver._forkserver._preload_modules
    assert "poptorch._dataloader.accessor" in multiprocessing.forkserver._forkserver._preload_modules
