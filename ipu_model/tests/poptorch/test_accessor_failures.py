"""What happens when something ends early: the data, the process, the program (data reference, 3.5)."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from loading_datasets import (
    TIMEOUT_IN_S,
    Dies,
    Fails,
    Numbers,
    Stream,
    access,
    counter,
    is_running,
    loader_processes,
    row,
    wait_for,
)
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from ipu_model.errors import Error
from poptorch._dataloader import accessor as loader_process
from poptorch.enums import SharingStrategy

FETCHER = "An error occurred in the data fetcher"


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Whatever a test did with its accessors."""
    yield
    gc.collect()
    assert loader_processes() == []


def the_process() -> Any:
    (process,) = loader_processes()
    return process


@pytest.mark.parametrize(
    ("dataset", "arguments", "words"),
    [
        (Numbers(0), {}, "The Dataset is empty"),
        (Stream(0), {}, "The Dataset is empty"),
        ([torch.zeros(3, 2)], {"rebatched_size": 4}, "The Dataset is empty: it has fewer than the 4 rows"),
        ([(torch.zeros(2), "0")], {}, "is not a torch tensor but a str"),
        ([3, 4], {}, "is not a torch tensor but a int"),
        ([torch.eye(2).to_sparse()], {}, "is a torch tensor without a plain layout"),
        (map(os._exit, [7]), {}, "exit code 7"),
    ],
)
def test_failing_before_the_first_item(dataset: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(Error, match=rf"(?s){words}.*worker thread failed|worker thread failed to start.*{words}"):
        access(dataset, **arguments)


def test_the_error_says_first_what_happened_and_in_which_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Error) as caught:
        access(Fails(3, bad=0))
    assert re.fullmatch(
        r"ValueError: sample 0 is bad \(line \d+ of failing in loading_datasets\.py: raise ValueError\(.*\)\)\n"
        r"AsynchronousDataAccessor: the worker thread failed to start\.",
        caught.value.message,
    )
    for printed in (str(caught.value.__cause__), capfd.readouterr().err):
        assert "Traceback" in printed
        assert "loading_datasets.py" in printed
        assert "ValueError: sample 0 is bad" in printed


class Unlikely(Exception):
    """Cannot be pickled, nor built from its arguments, and has a message of two lines."""

    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(f"{one}\n{two}")
        self.pipe = threading.Lock()


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def after_one_item(error: Callable[[], Exception]) -> Iterator[Tensor]:
    yield torch.zeros(1)
    raise error()


def raising(error: Callable[[], Exception], index: int) -> Any:
    raise error()


def collate_unequal(samples: list[Tensor]) -> Any:
    return default_collate([torch.zeros(n) for n in range(len(samples))])


@pytest.mark.parametrize(
    ("sample", "collate", "said", "line"),
    [
        # An exception that cannot be pickled, in a function that torch's worker process calls.
        (
            partial(raising, partial(Unlikely, 1, two=2)),
            None,
            "Unlikely: 1\n2 (line ",
            "of raising in test_accessor_failures.py: raise error())",
        ),
        # An error within torch is told with the line that called it.
        (row, collate_unequal, "RuntimeError: ", "of collate_unequal in test_accessor_failures.py: "),
    ],
)
def test_exceptions_of_torchs_workers_come_unwrapped(sample: Any, collate: Any, said: str, line: str) -> None:
    with pytest.raises(Error) as caught:
        access(torch.utils.data.DataLoader(Numbers(4, sample), 2, num_workers=1, collate_fn=collate))
    assert caught.value.message.startswith(said)
    assert line in caught.value.message


@pytest.mark.parametrize(
    ("dataset", "arrive", "words"),
    [
        (Fails(9, bad=4), [0, 1, 2, 3], r"^ValueError: sample 4 is bad"),
        (after_one_item(partial(Unlikely, 1, two=2)), [0], r"^Unlikely: 1\n2 \(line "),
        (after_one_item(Speechless), [0], r"^Speechless: <exception str\(\) failed> \(line "),
        (after_one_item(partial(KeyError, "label")), [0], r"^KeyError: 'label' \(line "),
        (after_one_item(AssertionError), [0], r"^AssertionError \(line "),
        (Dies(9), [0, 1], "exit code 7"),
        # Items unlike the first.
        ([torch.zeros(2), torch.ones(3)], [0], "first"),
        ([{"x": torch.zeros(2)}, {"z": torch.ones(2)}], [0], "first"),
        ([{"x": torch.zeros(2)}, [torch.ones(2)]], [0], "first"),
        (torch.utils.data.DataLoader(Numbers(5), batch_size=2), [0, 2], "drop the last batch"),
    ],
)
def test_what_came_before_still_arrives_and_every_use_then_says_what_happened(
    capfd: pytest.CaptureFixture[str], dataset: Any, arrive: list[int], words: str
) -> None:
    accessor = access(dataset, buffer_size=2)
    assert [int(tree_leaves(next(accessor))[0].flatten()[0]) for _ in arrive] == arrive
    with pytest.raises(AssertionError, match=f"(?s){words}") as caught:
        next(accessor)
    assert FETCHER in str(caught.value)
    for use in (next, iter):
        with pytest.raises(AssertionError, match=FETCHER):
            use(accessor)
    assert words == "exit code 7" or "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize("strategy", [SharingStrategy.Fork, SharingStrategy.ForkServer])
def test_a_killed_process_is_noticed_at_once(strategy: SharingStrategy) -> None:
    accessor = access(Numbers(9), sharing_strategy=strategy, early_preload=True)
    assert next(accessor)[0] == 0
    os.kill(the_process().pid, signal.SIGKILL)
    for process in loader_processes():
        process.join(TIMEOUT_IN_S)
    with pytest.raises(AssertionError, match=rf"{FETCHER}.*signal 9 \(SIGKILL\)"):
        next(accessor)


def killing_itself_but_not_its_child() -> Iterator[Tensor]:
    child = os.fork()
    if child == 0:
        time.sleep(TIMEOUT_IN_S)
        os._exit(0)
    yield torch.tensor(child)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_noticed_although_its_children_live_on() -> None:
    """They hold its end of the pipe open, so its death alone does not close it."""
    accessor = access(killing_itself_but_not_its_child())
    child = int(next(accessor))
    with pytest.raises(AssertionError, match=FETCHER):
        next(accessor)
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


def test_another_dtype_is_converted_to_the_first_items() -> None:
    third = torch.ones(2, dtype=torch.float64) / 3
    items = [item.clone() for item in access([torch.zeros(2).half(), third, torch.zeros(2)])]
    assert [x.dtype for x in items] == [torch.float16] * 3
    # A third in half precision: 1365 / 4096.
    assert items[1].tolist() == [1365 / 4096] * 2


@pytest.mark.parametrize("strategy", [SharingStrategy.Fork, SharingStrategy.ForkServer])
def test_terminating_ends_the_process(strategy: SharingStrategy) -> None:
    accessor = access(Numbers(9), sharing_strategy=strategy)
    view = next(accessor)
    pid = the_process().pid
    accessor.terminate()
    accessor.terminate()
    assert not is_running(pid)
    for use in (next, iter):
        with pytest.raises(AssertionError, match="terminated"):
            use(accessor)
    assert view.tolist() == [0, 0]  # what was handed out stays readable


class Sleeps:
    """Delivers one item, sets a flag and sleeps; can be deaf to signals."""

    def __init__(self, *deaf_to: signal.Signals) -> None:
        self.asleep, self.deaf_to = counter(), deaf_to

    def __iter__(self) -> Iterator[Tensor]:
        for number in self.deaf_to:
            signal.signal(number, signal.SIG_IGN)
        yield torch.zeros(1)
        self.asleep.value = 1
        time.sleep(TIMEOUT_IN_S)


def test_who_does_not_end_is_interrupted_and_then_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    # Data reference, section 3.5: 10 s after the command to end comes SIGINT, 10 s later SIGTERM.
    assert loader_process._PATIENCE_IN_S == 10.0
    monkeypatch.setattr(loader_process, "_PATIENCE_IN_S", 3.0)  # ample for the busy one to leave
    started, ends = [], []
    for dataset in (Sleeps(), Sleeps(signal.SIGINT, signal.SIGTERM)):
        accessor = access(dataset)
        started += [process for process in loader_processes() if process not in started]
        next(accessor)
        wait_for(lambda dataset=dataset: dataset.asleep.value)
        ends.append(threading.Thread(target=accessor.terminate))
    for end in ends:
        end.start()
    for end in ends:
        end.join()
    assert [process.exitcode for process in started] == [0, -signal.SIGKILL]


def test_a_forked_copy_of_the_program_does_not_end_the_process() -> None:
    accessor = access(Numbers(4))
    next(accessor)
    child = os.fork()
    if child == 0:
        accessor.terminate()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [int(item[0]) for item in accessor] == [0, 1, 2, 3]


def test_nothing_has_a_name_in_the_folder_for_shared_memory() -> None:
    # What has no name while it is used cannot be left behind, not even by a crash.
    accessor = access(Numbers(4))
    next(accessor)
    mapped = Path(f"/proc/{the_process().pid}/maps").read_text().splitlines()
    assert any("memfd:poptorch-loader" in line for line in mapped)
    assert not [line for line in mapped if "/dev/shm/" in line and "(deleted)" not in line]


# The end of the program.

PROGRAM = """
import multiprocessing, time, torch
import loading_datasets as data
from poptorch._dataloader import AsynchronousDataAccessor, DataLoader
from poptorch.enums import DataLoaderMode, SharingStrategy
from poptorch.options import Options

kept = []

def main(strategy, ending):
    loader = DataLoader(Options(), data.Slow(1000, 0.001), batch_size=2, num_workers=1,
                        mode=DataLoaderMode.Async, async_options={"sharing_strategy": strategy})
    end_after_one_item_of(loader, ending)

def main_stuck(strategy):
    stuck = data.Numbers(3, lambda index: time.sleep(60 * (index > 0)) or torch.zeros(1))
    end_after_one_item_of(AsynchronousDataAccessor(stuck, sharing_strategy=strategy), wait)

def end_after_one_item_of(loader, ending):
    kept.append(loader)  # the end of main() must not delete it
    next(iter(loader))
    print(multiprocessing.active_children()[0].pid, flush=True)
    ending()

def wait():
    time.sleep(60)

def fail():
    raise RuntimeError("the program failed")
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Start]:
    """Starts programs in process groups of their own, which end with the test."""
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}

    def start(call: str, guard: str = 'if __name__ == "__main__": ') -> subprocess.Popen[str]:
        file = tmp_path / "program.py"
        file.write_text(f"{PROGRAM}\n{guard}{call}\n")
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, str(file)]
        started.append(subprocess.Popen(command, env=environment, start_new_session=True, **pipes))
        return started[-1]

    yield start
    for running in started:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


@pytest.mark.parametrize(
    ("call", "traces", "last"),
    [
        ("main(SharingStrategy.ForkServer, print)", 0, ""),
        ("main(SharingStrategy.Fork, fail)", 1, "the program failed"),
        ("main(SharingStrategy.ForkServer, wait)", 1, "KeyboardInterrupt"),
        ("main(SharingStrategy.Fork, wait)", 1, "KeyboardInterrupt"),
    ],
)
def test_a_program_shows_its_own_error_only(program: Start, call: str, traces: int, last: str) -> None:
    ending = program(call)
    pid = int(ending.stdout.readline())
    if last == "KeyboardInterrupt":
        os.killpg(ending.pid, signal.SIGINT)  # what a terminal does
    _, err = ending.communicate(timeout=TIMEOUT_IN_S)
    assert (bool(ending.returncode), err.count("Traceback"), bool(err)) == (bool(last), traces, bool(last))
    assert err.rstrip().endswith(last)
    assert not is_running(pid)


def test_a_killed_program_takes_its_process_along(program: Start) -> None:
    running = program("main_stuck(SharingStrategy.Fork)")
    pid = int(running.stdout.readline())
    assert is_running(pid)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate(timeout=TIMEOUT_IN_S)
    wait_for(lambda: not is_running(pid))  # although it is in the middle of loading an item


def test_a_program_without_guard_is_told_so(program: Start) -> None:
    running = program("main(SharingStrategy.SharedMemory, print)", guard="")
    _, err = running.communicate(timeout=TIMEOUT_IN_S)
    assert running.returncode == 1
    assert "worker thread failed to start" in err
    assert '`if __name__ == "__main__":` guard' in err
