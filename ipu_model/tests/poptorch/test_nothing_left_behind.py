"""Whatever ends a loop, its processes, threads, files and shared memory end with it, and torch is as before.

Ctrl-C is a real signal; the processor time at which it comes sweeps over the whole of what is interrupted.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from executor_support import Module, X, in_plain_pytorch, quiet, training, with_loss
from fuzz.leftovers import Leftovers
from loading_datasets import Dies, Fails, Numbers, Threads, is_running, wait_for
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


def doubling() -> Any:
    return with_loss(lambda m, x: torch.log(m.scale * x * 2 + 1), "mean", scale=nn.Parameter(torch.ones(())))


def loader(kind: str, dataset: Any = None, **others: Any) -> poptorch.DataLoader:
    return poptorch.DataLoader(quiet(), dataset or Numbers(8), batch_size=2, **LOADERS[kind], **others)


def a_generator_left_halfway(kind: str) -> None:
    def batches() -> Iterator[Any]:
        yield from loader(kind)

    halfway = batches()
    next(halfway)


def garbage_in_a_cycle(kind: str) -> None:
    cycle: list[Any] = [loader(kind)]
    cycle.append(cycle)
    next(iter(cycle[0]))


def a_step_that_fails(kind: str) -> None:
    """The device stops at log(1 - 2 * 0.5), for sample 1."""
    executor = training(doubling(), quiet(enableFloatingPointExceptions=True))
    for item in loader(kind):
        executor(item * -0.5)


def a_batch_that_does_not_fit(kind: str) -> None:
    executor = training(doubling())
    for number, item in enumerate(loader(kind)):
        executor(item[: 2 - number])


Error: Any = poptorch.Error
bad_collate = Mock(side_effect=LookupError("cannot collate"))
ENDS: dict[Callable[[str], Any], tuple[Any, str | None]] = {
    lambda kind: list(loader(kind)): ((), None),
    a_generator_left_halfway: ((), None),
    lambda kind: list(loader(kind, Fails(8, bad=5))): ((ValueError, AssertionError), "sample 5 is bad"),
    garbage_in_a_cycle: ((), None),
    lambda kind: [Mock(side_effect=LookupError)() for _ in loader(kind)]: (LookupError, None),
    lambda kind: [Mock(side_effect=KeyboardInterrupt)() for _ in loader(kind)]: (KeyboardInterrupt, None),
    lambda kind: list(loader(kind, Fails(8, bad=0))): ((ValueError, Error), "sample 0 is bad"),
    lambda kind: list(loader(kind, collate_fn=bad_collate)): ((LookupError, Error), "cannot collate"),
    a_step_that_fails: (Error, "Floating point exception"),
    a_batch_that_does_not_fit: (Error, "Shape mismatch"),
    lambda kind: list(loader(kind, Dies(8))): ((RuntimeError, AssertionError), "exited unexpectedly|the data fetcher"),
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
def test_the_workers_of_a_loader_end_with_it(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    made = loader(kind, Threads(8))
    pids = {int(pid) for pids, _ in made for pid in pids}
    assert pids
    del made
    gc.collect()
    wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_short_soak_does_not_grow() -> None:
    """The run of `make soak`, some hundred steps of it: counts are exact, memory has that program's tolerance."""
    from soak import STEPS, grown, training_steps

    seen = list(training_steps(300, 2, poptorch.SharingStrategy.Fork))
    assert len(seen) == 3, "at the start, in the middle and at the end"
    assert grown(seen[0], seen[-1], STEPS) == []


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


def network(press: Callable[[], Any] = lambda: None) -> Any:
    """Return a network with a buffer that changes; it can press Ctrl-C itself."""

    def forward(model: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(model.norm(model.first(x)))
        model.press()
        return model.second(hidden) ** 2

    torch.manual_seed(0)
    layers = {"first": nn.Linear(3, 4), "norm": nn.BatchNorm1d(4), "second": nn.Linear(4, 2)}
    return with_loss(forward, "mean", press=press, **layers)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Send this process a SIGINT once it has used so much processor time."""
    before = signal.signal(signal.SIGPROF, lambda number, frame: interrupt())
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def interruptions(action: Callable[[], Any]) -> list[Any]:
    """Return contexts that interrupt their body at eight moments, from the start to the end of `action`."""
    start = time.process_time()
    action()
    return [interrupted_after((time.process_time() - start) * (number + 1) / 8) for number in range(8)]


def test_compiling_can_be_interrupted_at_any_moment() -> None:
    training(network())(X)
    swept = interruptions(lambda: training(network())(X))
    before = Leftovers.now()
    for interrupted in swept:
        model = network()
        executor = training(model)
        with interrupted:
            executor(X)
        assert before.difference() == ""
        assert executor(X)[0].shape == (4, 2)
        executor.destroy()
        assert type(model) is Module
        assert type(model.first.weight) is nn.Parameter
        assert torch.isfinite(model(X)[0]).all()


def hang() -> None:
    while True:
        interrupt()


@pytest.mark.parametrize("press", [interrupt, hang], ids=["once", "a forward that hangs ends with the second"])
def test_an_interrupt_while_tracing_stops_at_the_next_op(press: Callable[[], None]) -> None:
    reached: list[str] = []
    model = network(lambda: (press(), reached.append("pressed")))
    executor = training(model)
    with pytest.raises(KeyboardInterrupt):
        executor(X)
    assert reached == (["pressed"] if press is interrupt else [])
    assert not executor.isCompiled()
    model.press = lambda: None
    assert training(model)(X)[0].shape == (4, 2)


def test_a_call_can_be_interrupted_at_any_moment_and_updates_are_whole() -> None:
    """A call's weights are those of plain PyTorch after some whole number of its updates."""
    iterations = 6
    options = quiet(deviceIterations=iterations)
    x = X.repeat(iterations, 1)

    def weights(model: Any) -> Tensor:
        return torch.cat([model.first.weight.detach().flatten(), model.second.weight.detach().flatten()])

    allowed = [weights(in_plain_pytorch(network(), *[(X,)] * updates)) for updates in range(iterations + 1)]
    executor = training(network(), options.clone())
    executor(x)
    swept = interruptions(lambda: executor(x))
    for interrupted in swept:
        model = network()
        executor = training(model, options.clone())
        executor.compile(x)
        with interrupted:
            executor(x)
        executor.copyWeightsToHost()
        assert min(float((weights(model) - state).abs().max()) for state in allowed) < 1e-5
        assert executor(x)[0].shape == (4, 2)
        executor.destroy()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_loop_over_a_loader_can_be_interrupted_at_any_moment(kind: str) -> None:
    """The model goes on, and the loader starts again or asks for a new one; in a notebook: the course's tests."""
    executor, made = training(doubling(), lr=0.0), loader(kind)

    def loop() -> None:
        for item in made:
            executor(item)

    loop()
    for interrupted in interruptions(loop):
        with interrupted:
            loop()
        assert executor(torch.ones(2, 2))[0].shape == (2, 2)
        try:
            rows = sum(len(item) for item in made)
        except AssertionError as error:
            rows, made = 8 * ("create a new loader" in str(error)), loader(kind)
        assert rows == 8
