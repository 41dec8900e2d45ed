"""Lesson 05: its checks, its helpers, and that no loader process outlives what started it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client import BlockingKernelClient, KernelManager
from jupyter_client.manager import start_new_kernel

from ipu_course.call_parts import CallParts
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.async_data_loading.calls_timed import TimedCalls, time_calls
from ipu_course.lessons.async_data_loading.exercises import keep_hint, traces_hint
from ipu_course.lessons.async_data_loading.explorer import waiting
from ipu_course.lessons.async_data_loading.measured_loaders import MeasuredLoader, ruled_milliseconds
from ipu_course.lessons.async_data_loading.safe_script import (
    LIMIT_WORDS,
    ScriptEnd,
    last_error,
    run_scripts,
    start_error,
)
from ipu_course.lessons.async_data_loading.slow_images import SlowImages
from ipu_course.lessons.async_data_loading.traces import traces_description, traces_figure

PATIENCE_SECONDS = 90


class TestExercises:
    @pytest.mark.parametrize(
        ("keep", "words"),
        [
            (lambda x: x + 0, None),
            (lambda x: x.view(-1), "a view"),
            (lambda x: x.contiguous(), "the same tensor"),
            (lambda x: x * 2, "unchanged"),
        ],
    )
    def test_keeping_is_judged_by_what_is_left(self, keep: Any, words: str | None) -> None:
        hint = keep_hint(keep)
        assert hint is None if words is None else words in str(hint)

    def test_the_first_wrong_trace_gets_its_hint(self) -> None:
        # Seconds of loading, of the call on the host, of streams and of computing.
        traces = {
            "A": CallParts(0.4, 0.1, 0.0, 0.1, True),
            "B": CallParts(0.1, 0.1, 0.0, 0.4, True),
            "C": CallParts(0.1, 0.4, 0.0, 0.1, True),
        }
        assert traces_hint("loading", "IPUs", "calls", using=traces) is None
        assert str(traces_hint("loading", "IPUs", "IPUs", using=traces)).startswith("Trace C")

    def test_the_buffer_s_answers_are_those_of_the_explorer(self) -> None:
        # 150 and 200 ms, every fifth load six times as long: 3 slots give 210 ms a call, 5 slots 200 ms.
        assert waiting(150, 200, 0, 3, True) == pytest.approx(1 - 200 / 210)
        assert waiting(150, 200, 0, 5, True) == pytest.approx(0.0, abs=1e-9)


def test_traces_share_one_axis() -> None:
    figure = traces_figure({"one": CallParts(0.1, 0.1, 0.1, 0.1, False)}, 1.0, "Title")
    (axes,) = figure.axes
    assert axes.get_xlim() == (0.0, 1000.0)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "one: loading",
        "one: call on the host",
        "one: IPUs",
    ]


def test_the_description_of_traces_says_how_often_a_call_starts() -> None:
    # With Sync the parts add up, and with Async the longer of loading and call counts.
    parts = {"Sync": CallParts(0.3, 0.1, 0.05, 0.05, False), "Async": CallParts(0.3, 0.1, 0.05, 0.05, True)}
    words = traces_description(parts, 1.0)
    assert "Sync: loading for 300 ms, then a call of 100 ms on the host and 100 ms on the IPUs" in words
    assert "only after the call, and a call starts every 500 ms" in words
    assert "during the calls, and a call starts every 300 ms" in words


class TestData:
    def test_slow_images_are_the_images_and_each_batch_sleeps_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        images, slept = colour_shapes(train=True, images=7), []
        monkeypatch.setattr(time, "sleep", slept.append)
        slow = SlowImages(images, milliseconds=[3, 9], batch_size=2)
        assert len(slow) == 7
        assert all(torch.equal(slow[i][0], images[i][0]) for i in range(7))
        assert slept == [0.003, 0.009, 0.003, 0.009]

    @pytest.mark.parametrize("milliseconds", [[5, -1], [1001], []])
    def test_impossible_times_are_refused(self, milliseconds: list[float]) -> None:
        with pytest.raises(ValueError, match=r"0 to 1,000 ms|at least one time"):
            SlowImages(colour_shapes(train=True, images=1), milliseconds, batch_size=1)


class TestRule:
    @staticmethod
    def ruled(loads: list[float], slots: int) -> float:
        return ruled_milliseconds(20, MeasuredLoader(loads, slots, TimedCalls(0.0, 26, 1.0)))

    def test_even_loads_as_long_as_a_call_are_added_with_sync_and_hidden_with_async(self) -> None:
        assert self.ruled([20], 0) == pytest.approx(40)
        assert self.ruled([20], 3) == pytest.approx(20)

    def test_uneven_loads_of_the_same_mean_need_more_slots(self) -> None:
        uneven = [10.0, 10.0, 10.0, 10.0, 60.0]
        assert self.ruled(uneven, 0) == pytest.approx(40)
        # With 3 slots, calls wait for the long load; a long ring leaves only the first wait, before it is full.
        assert 1.1 * 20 < self.ruled(uneven, 3) < 1.5 * 20
        assert 20 <= self.ruled(uneven, 8) < 1.1 * 20


class Counted:
    """A loader that counts how often it was terminated."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.terminated = 0

    def __iter__(self) -> Iterator[tuple[int]]:
        return ((number,) for number in range(self.items))

    def terminate(self) -> None:
        self.terminated += 1


class TestTimedCalls:
    def test_every_item_is_called_and_the_loader_terminated(self) -> None:
        loader, seen = Counted(4), []
        assert time_calls(loader, seen.append).calls == 4  # type: ignore[arg-type]  # a stand-in
        assert seen == [0, 1, 2, 3]
        assert loader.terminated == 1

    def test_it_ends_at_the_limit(self) -> None:
        loader = Counted(10**9)
        time_calls(loader, lambda _: time.sleep(0.01), limit_seconds=0.05)  # type: ignore[arg-type]
        assert loader.terminated == 1

    @pytest.mark.parametrize("problem", [KeyboardInterrupt, ValueError])
    def test_the_loader_is_terminated_whatever_happens(self, problem: type[BaseException]) -> None:
        loader = Counted(4)

        def fail(_: int) -> None:
            raise problem

        with pytest.raises(problem):
            time_calls(loader, fail)  # type: ignore[arg-type]
        assert loader.terminated == 1

    def test_one_call_is_too_few(self) -> None:
        with pytest.raises(ValueError, match="too few"):
            time_calls(Counted(1), lambda _: None)  # type: ignore[arg-type]


class TestScripts:
    def test_files_and_sessions_end_as_they_do(self) -> None:
        ends = run_scripts(
            {"good": "print(__name__)\nprint(__file__.endswith('.py'))", "bad": "import os\nraise OSError('no')"},
            {"session": "print(__name__, '__file__' in globals())"},
        )
        assert ends == {
            "good": ScriptEnd("__main__\nTrue", "", succeeded=True),
            "bad": ScriptEnd("", "OSError: no", succeeded=False),
            "session": ScriptEnd("__main__ False", "", succeeded=True),
        }

    def test_a_script_that_hangs_is_stopped(self) -> None:
        before = set(psutil.Process().children(recursive=True))
        (end,) = run_scripts({"hangs": "while True: pass"}, limit_seconds=0.5).values()
        assert end.verdict == LIMIT_WORDS
        assert set(psutil.Process().children(recursive=True)) <= before

    def test_an_interrupt_leaves_no_script_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        before = set(psutil.Process().children(recursive=True))
        monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_scripts({"hangs": "while True: pass"})
        assert set(psutil.Process().children(recursive=True)) <= before

    def test_the_error_is_told_without_modules_and_codes(self) -> None:
        assert last_error("Traceback\n  line\npoptorch.poptorch_core.Error: 'poptorch_py_error': no.\n") == "Error: no."
        assert last_error("KeyError: 'x'\n\n") == "KeyError: 'x'"
        assert last_error("Traceback\n  line\nError: one is bad.\nThe loader failed.\n") == "Error: one is bad."
        assert last_error("") == ""

    def test_python_s_own_words_about_early_starts_become_a_sentence(self) -> None:
        text = "x\nRuntimeError: \n        An attempt has been made\n        too early.\n\n        This probably\n"
        assert start_error(text) == "RuntimeError: An attempt has been made too early."
        assert start_error("RuntimeError: other\n") == ""

    @given(st.text())
    def test_any_text_is_read(self, text: str) -> None:
        assert isinstance(last_error(text) + start_error(text), str)


SETUP = """
import poptorch, time
from ipu_course.lessons.async_data_loading.calls_timed import time_calls
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.async_data_loading.slow_images import SlowImages
def make():
    slow = SlowImages(colour_shapes(train=True, images=400), [80], batch_size=4)
    return poptorch.DataLoader(poptorch.Options(), slow, batch_size=4, mode=poptorch.DataLoaderMode.Async)
loader = make()
"""
USE = "time_calls(loader, lambda *batch: print('called', flush=True), limit_seconds=60)"


@pytest.fixture
def kernel() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A notebook's kernel with an asynchronous loader in it."""
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=PATIENCE_SECONDS)
    try:
        reply = client.execute_interactive(SETUP, timeout=PATIENCE_SECONDS, output_hook=lambda _: None)
        assert reply["content"]["status"] == "ok", reply
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def processes_of(manager: KernelManager) -> list[psutil.Process]:
    kernel = psutil.Process(manager.provisioner.pid)  # type: ignore[union-attr]  # it was started
    return [kernel, *kernel.children(recursive=True)]


def loaders_of(manager: KernelManager) -> list[psutil.Process]:
    """The kernel's loader processes: those that the fork server has forked."""
    servers = [each for each in processes_of(manager)[1:] if "forkserver" in " ".join(each.cmdline())]
    return [child for server in servers for child in server.children()]


def begin(client: BlockingKernelClient) -> str:
    """Start the cell that loads, and return as soon as it does.

    An error in it aborts no later cell: the kernel would abort what arrives within a moment after its reply, and that
    moment is longer on a busy machine.
    """
    request = client.execute(USE, stop_on_error=False)
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE_SECONDS)
        if message["parent_header"].get("msg_id") == request and message["msg_type"] == "stream":
            return str(request)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the processes' tree as Linux keeps it")
class TestClosedKernel:
    @pytest.mark.parametrize("how", ["killed", "shut down"])
    def test_no_process_is_left(self, kernel: tuple[KernelManager, BlockingKernelClient], how: str) -> None:
        manager, client = kernel
        begin(client)
        processes = processes_of(manager)
        assert loaders_of(manager), "there is no loader process to watch"
        if how == "killed":
            os.kill(processes[0].pid, signal.SIGKILL)  # the kernel alone, as the system does when memory ends
        else:
            manager.shutdown_kernel()
        _, left = psutil.wait_procs(processes[1:], timeout=PATIENCE_SECONDS)
        assert not left

    def test_an_interrupted_cell_ends_its_loader_and_the_next_one_works(
        self, kernel: tuple[KernelManager, BlockingKernelClient]
    ) -> None:
        manager, client = kernel
        request, loaders = begin(client), loaders_of(manager)
        assert loaders
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=PATIENCE_SECONDS)
        assert reply["parent_header"]["msg_id"] == request
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        _, left = psutil.wait_procs(loaders, timeout=PATIENCE_SECONDS)
        assert not left
        again = client.execute_interactive(
            "loader = make()\nfirst = next(iter(loader))\nloader.terminate()\nassert len(first[1]) == 4",
            timeout=PATIENCE_SECONDS,
            output_hook=lambda _: None,
        )
        assert again["content"]["status"] == "ok", again


def test_the_tests_themselves_leave_no_loader() -> None:
    assert not [child for child in multiprocessing.active_children() if child.name == "poptorch-loader"]
