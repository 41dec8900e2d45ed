"""Whatever ends a loop, its processes, threads, files and shared memory end with it, and torch is as before."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_support import Module, quiet, training, with_loss
from fuzz.leftovers import Leftovers
from loading_datasets import Dies, Fails, Numbers, Threads, with_count
from loading_processes import runs, wait_for
from torch import Tensor, nn

import poptorch
from poptorch import DataLoaderMode

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

ASYNC = {"async_options": {"sharing_strategy": poptorch.SharingStrategy.Fork}}
LOADERS: dict[str, dict[str, Any]] = {
    "sync": {},
    "sync with a worker": {"num_workers": 1},
    "async": {"mode": DataLoaderMode.Async, **ASYNC},
    "async with a worker": {"mode": DataLoaderMode.Async, "num_workers": 1, **ASYNC},
    "rebatched": {"mode": DataLoaderMode.AsyncRebatched, "drop_last": False, **ASYNC},
}


@pytest.fixture(scope="module", autouse=True)
def quick_ends() -> Iterator[None]:
    """Let torch's loader look after its workers more often than every five seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
        yield


class Stop(Exception):
    """What a program raises."""


def doubling() -> Any:
    """Return a model whose loss is the logarithm of one more than twice a number's product with its scale, 1."""
    return with_loss(lambda m, x: torch.log(m.scale * x * 2 + 1), "mean", scale=nn.Parameter(torch.ones(())))


def loader(kind: str, dataset: Any = None, **others: Any) -> poptorch.DataLoader:
    return poptorch.DataLoader(quiet(), dataset or Numbers(8), batch_size=2, **LOADERS[kind], **others)


def until_the_end(kind: str) -> None:
    assert sum(len(item) for item in loader(kind)) == 8


def raises(error: BaseException) -> Any:
    raise error


def a_generator_left_halfway(kind: str) -> None:
    def batches() -> Iterator[Any]:
        yield from loader(kind)

    halfway = batches()
    next(halfway)


def garbage_in_a_cycle(kind: str) -> None:
    cycle: list[Any] = [loader(kind)]
    cycle.append(cycle)
    next(iter(cycle[0]))


def bad_collate(samples: list[Tensor]) -> Any:
    raise Stop("cannot collate")


def a_step_that_fails(kind: str) -> None:
    """The device stops at log(1 - 2 * 0.5), for sample 1."""
    executor = training(doubling(), quiet(enableFloatingPointExceptions=True))
    for item in loader(kind):
        executor(item * -0.5)


def a_batch_that_does_not_fit(kind: str) -> None:
    executor = training(doubling())
    for number, item in enumerate(loader(kind)):
        executor(item[: 2 - number])


def a_data_set_that_raises(kind: str) -> None:
    list(loader(kind, Fails(8, bad=5)))


Error: Any = poptorch.Error
ENDS: dict[Callable[[str], Any], tuple[Any, str | None]] = {
    until_the_end: ((), None),
    a_generator_left_halfway: ((), None),
    a_data_set_that_raises: ((ValueError, AssertionError), "sample 5 is bad"),
    garbage_in_a_cycle: ((), None),
    lambda kind: [raises(Stop()) for _ in loader(kind)]: (Stop, None),
    lambda kind: [raises(KeyboardInterrupt()) for _ in loader(kind)]: (KeyboardInterrupt, None),
    lambda kind: list(loader(kind, Fails(8, bad=0))): ((ValueError, Error), "sample 0 is bad"),
    lambda kind: list(loader(kind, collate_fn=bad_collate)): ((Stop, Error), "cannot collate"),
    a_step_that_fails: (Error, "Floating point exception"),
    a_batch_that_does_not_fit: (Error, "Shape mismatch"),
}
# All ends for two kinds of loader, the first three of them for the others.
CASES = [(end, kind) for end in ENDS for kind in ("sync with a worker", "async")]
CASES += [(end, kind) for end in list(ENDS)[:3] for kind in ("sync", "async with a worker", "rebatched")]


@pytest.mark.parametrize(("end", "kind"), CASES)
def test_nothing_is_left(end: Callable[[str], Any], kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    gc.collect()
    before = Leftovers.now()
    error, words = ENDS[end]
    with pytest.raises(error, match=words) if error else nullcontext():
        end(kind)
    gc.collect()
    wait_for(lambda: before.difference() == "")


@pytest.mark.parametrize("kind", ["async with a worker", "sync with a worker"])
def test_the_workers_of_a_loader_end_with_it(kind: str) -> None:
    made = loader(kind, Threads(8))
    pids = {int(pid) for pids, _ in made for pid in pids}
    assert pids
    del made
    gc.collect()
    wait_for(lambda: not any(runs(pid) for pid in pids))


def test_a_worker_that_dies_leaves_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    before = Leftovers.now()
    with pytest.raises(AssertionError, match="An error occurred in the data fetcher"):
        list(loader("async", Dies(8), collate_fn=with_count))
    gc.collect()
    wait_for(lambda: before.difference() == "")


def test_a_short_soak_does_not_grow() -> None:
    """The run of `make soak`, some hundred steps of it: counts are exact, memory has that program's tolerance."""
    from soak import STEPS, training_steps

    seen = list(training_steps(300, 2, poptorch.SharingStrategy.Fork))
    assert [usage.step for usage in seen] == [0, 150, 300]
    assert STEPS.complaints(seen[0], seen[-1]) == []


def test_an_executors_graphs_die_with_it() -> None:
    """What is remembered of a graph refers to the graph: it must not keep it alive."""
    from ipu_model.capture.graph import Graph

    def graphs() -> int:
        gc.collect()
        return sum(type(found) is Graph for found in gc.get_objects())

    before = graphs()
    for destroyed in (True, False):
        executor = training(doubling())
        executor(torch.ones(2))
        executor.getLatency()
        if destroyed:
            executor.destroy()
        del executor
    assert graphs() == before


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Let no file of this process grow beyond 64 KiB, as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_and_leaves_nothing(full_disk: None) -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(1000, 1000))
    how: dict[str, Any] = {"async_options": {"sharing_strategy": poptorch.SharingStrategy.FileSystem}}
    before = None
    for _ in range(2):  # The first time, multiprocessing starts a helper of its own.
        with pytest.raises(poptorch.Error, match=r"File too large.* Make room .* or use SharingStrategy.Fork"):
            poptorch.DataLoader(quiet(), data, mode=DataLoaderMode.Async, **how)
        gc.collect()
        assert before is None or before.difference() == ""
        before = Leftovers.now()


def test_a_report_on_a_full_disk_leaves_the_module_free(full_disk: None, tmp_path: Path) -> None:
    model = doubling()
    with pytest.raises(poptorch.Error, match="cannot be written"):
        training(model, quiet().enableProfiling(str(tmp_path / "report")))(torch.ones(2))
    assert type(model) is Module
    assert training(model)(torch.ones(2))[0].shape == (2,)
