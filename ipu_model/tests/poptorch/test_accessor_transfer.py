"""How a data set gets into the loader's process, by every sharing strategy (data reference, 3.1)."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import sys
import tracemalloc
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading_datasets import Counted, Numbers

from ipu_model.errors import Error
from poptorch._dataloader import AsynchronousDataAccessor
from poptorch._dataloader.shared import SharedFile, Transfer
from poptorch.enums import SharingStrategy

FORK = multiprocessing.get_context("fork")
BY_PICKLING = [SharingStrategy.ForkServer, SharingStrategy.SharedMemory, SharingStrategy.FileSystem]


def example() -> dict[str, Any]:
    """A value with everything that needs care on the way: aliases, views, gradients, subclasses, arrays."""
    base = torch.arange(12.0).view(3, 4)
    return {
        "base": base,
        "view": base.T[1:],
        "leaf": torch.ones(2, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.full((2,), 3.0)),
        "sparse": torch.eye(3).to_sparse(),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "empty": torch.zeros(0, 3),
        "half": torch.tensor([1.5], dtype=torch.float16),
        "array": np.arange(5, dtype=np.int16),
        "text": "unchanged",
    }


def arrived(value: Any, *, on_disk: bool = False) -> Any:
    """Return a value as another process finds it."""
    journey = Transfer(value, SharedFile(on_disk=on_disk))
    other_end = Transfer.__new__(Transfer)
    vars(other_end).update(journey.__getstate__())
    return other_end.open()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("on_disk", [False, True])
def test_values_survive_the_journey(on_disk: bool) -> None:
    sent = example()
    got = arrived(sent, on_disk=on_disk)
    assert list(got) == list(sent)
    for key in ("base", "view", "leaf", "parameter", "conjugate", "empty", "half"):
        assert torch.equal(got[key], sent[key]), key
        assert (got[key].dtype, got[key].stride()) == (sent[key].dtype, sent[key].stride()), key
        assert got[key].requires_grad == sent[key].requires_grad, key
    assert type(got["parameter"]) is torch.nn.Parameter
    assert torch.equal(got["sparse"].to_dense(), torch.eye(3))
    assert got["text"] == "unchanged"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5, dtype=np.int16), np.arange(6.0).reshape(2, 3).T, np.arange(9)[::2], np.zeros((0, 3)), np.array(7),
        np.array(["a", "bc"]), np.array([None, 1], dtype=object), np.array(["2020-01-02"], dtype="datetime64[D]"),
        np.frombuffer(b"read only", dtype=np.uint8),
    ],
)  # fmt: skip
def test_arrays_of_every_kind_survive(array: Any) -> None:
    got = arrived(array)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert (got == array).all()


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


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_tensors_on_the_same_memory_stay_on_the_same_memory() -> None:
    got = arrived(example())
    got["base"][0, 1] = 100.0
    assert got["view"][0, 0] == 100.0
    got["array"][0] = 7  # arrays stay writable


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_what_arrives_is_a_copy() -> None:
    sent = example()
    got = arrived(sent)
    got["base"].zero_()
    got["array"][:] = 9
    assert sent["base"].sum() == sum(range(12))
    assert sent["array"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("strategy", BY_PICKLING)
def test_data_sets_may_hold_many_tensors_and_locks(strategy: SharingStrategy) -> None:
    # One open file per tensor would be too many: a fork server takes 256 at most.
    method = "forkserver" if strategy is SharingStrategy.ForkServer else "spawn"
    counter = multiprocessing.get_context(method).Value("i", 0)
    accessor = AsynchronousDataAccessor(_Tensors(300, counter), sharing_strategy=strategy)
    try:
        assert [int(item[0]) for item in accessor] == list(range(300))
        assert counter.value >= 300
    finally:
        accessor.terminate()


class _Tensors(Counted):
    """Holds its samples."""

    def __init__(self, length: int, counter: Any) -> None:
        super().__init__(length, counter)
        self.tensors = [torch.full((2,), float(index)) for index in range(length)]

    def __getitem__(self, index: int) -> torch.Tensor:
        super().__getitem__(index)
        return self.tensors[index]


def test_a_data_set_that_cannot_be_sent() -> None:
    class Local(Numbers):
        pass

    with pytest.raises(Error, match=r"worker thread failed to start.*cannot be sent.*SharingStrategy\.Fork"):
        AsynchronousDataAccessor(Local(3))
    accessor = AsynchronousDataAccessor(Local(3), sharing_strategy=SharingStrategy.Fork)
    assert len(list(accessor)) == 3
    accessor.terminate()


def test_a_data_set_that_means_nothing_to_the_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # Like a class of a notebook cell: only this process knows its module.
    module = types.ModuleType("only_here")
    exec("class Vanishes(list): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(Error, match=r"(?s)cannot rebuild.*No module named 'only_here'.*failed to start"):
        AsynchronousDataAccessor(module.Vanishes([torch.zeros(1)]))


def test_a_file_is_as_long_as_asked_for_and_shared() -> None:
    file = SharedFile()
    one, other = file.map(100), file.map(100)
    file.close()
    one[99] = 5
    assert (len(other), other[99]) == (100, 5)


def test_more_than_the_memory_there_is_cannot_be_shared() -> None:
    with pytest.raises(MemoryError, match="more memory than is available"):
        SharedFile().map(1 << 62)


def test_the_fork_server_keeps_what_the_program_preloads() -> None:
    # The list is private to the standard library: this notices if it moves.
    assert isinstance(multiprocessing.forkserver._forkserver._preload_modules, list)
    accessor = AsynchronousDataAccessor([torch.zeros(1)])
    accessor.terminate()
    assert "__main__" in multiprocessing.forkserver._forkserver._preload_modules
    assert "poptorch._dataloader.process" in multiprocessing.forkserver._forkserver._preload_modules
