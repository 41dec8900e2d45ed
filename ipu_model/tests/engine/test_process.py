"""What concerns the whole process: its torch, settings, processor time and threads, and interrupts that wait."""

from __future__ import annotations

import math
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_support import Net, session_of, traced
from torch import nn

import ipu_model
from ipu_model.capture.describe import step_of
from ipu_model.compute.threads import SWITCH, ParallelWork, Threads, choose, threads_for, work_of
from ipu_model.cores import Cores, CoreWatch, usable_cores
from ipu_model.errors import Error
from ipu_model.guards import NEWEST, OLDEST, public, refuse_other_torch
from ipu_model.process import deliver_interrupt, interrupt_postponed

# With another torch, or one that changed under the process, nothing of this distribution can be imported.

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
NEEDS = f"needs torch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, and this environment has torch 2.15.0"


@pytest.mark.parametrize(("program", "said"), [
    *((f"import {name}", NEEDS) for name in ("poptorch", "ipu_model", "popdist", "popart")),
    ("import sys, torch; sys.path.insert(0, sys.argv[1]); import poptorch",
     f"This process has loaded torch {torch.__version__}, and torch 2.15.0 was installed since"),
])  # fmt: skip
def test_an_import_says_which_torch_is_needed_and_what_helps(tmp_path: Path, program: str, said: str) -> None:
    """The folder has the name and the metadata of a later torch, and nothing else of it."""
    (tmp_path / "torch-2.15.0.dist-info").mkdir()
    (tmp_path / "torch.py").write_text('__version__ = "2.15.0+cpu"\n', encoding="utf-8")
    metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n"
    (tmp_path / "torch-2.15.0.dist-info" / "METADATA").write_text(metadata, encoding="utf-8")
    search = [str(tmp_path) if said is NEEDS else "", os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert said in last
    assert "restart the kernel" in last
    if said is NEEDS:
        assert last.startswith(f"ImportError: ipu-model {ipu_model.__version__} needs")
        assert f"pip install 'torch=={NEWEST[0]}.{NEWEST[1]}.*'" in last


def test_the_torch_of_these_tests_is_accepted_and_the_name_of_a_build_is_not_another_version() -> None:
    refuse_other_torch(ipu_model.__version__)
    assert public("2.12.1+cu130") == public("2.12.1+cpu") == "2.12.1"


def test_the_releases_are_those_that_the_distribution_asks_for() -> None:
    asked = re.search(r'"torch>=(\d+)\.(\d+)\.\d+,<(\d+)\.(\d+)"', PYPROJECT.read_text(encoding="utf-8"))
    assert asked is not None
    *oldest, major, minor = map(int, asked.groups())
    assert (tuple(oldest), (major, minor - 1)) == (OLDEST, NEWEST)


# What the whole process is set to: freed memory is kept where glibc offers it, threads wait asleep where GNU's can.

PROGRAM = """
import threading, torch
from ipu_model.compute.session import keep_freed_memory
from ipu_model.compute.threads import wait_asleep
number = torch.get_num_threads()
wait_asleep()  # twice: idle threads are started once
print(keep_freed_memory(), wait_asleep(), [thread.name for thread in threading.enumerate()].count("ipu-model-idle"))
assert torch.get_num_threads() == number
"""
SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "IPU_MODEL_KEEP_MEMORY")
KEPT = str(platform.libc_ver()[0] == "glibc")
# Machines with more cores keep no idle threads.
ASLEEP = "True 1" if sys.platform.startswith("linux") and 1 < usable_cores() <= 16 else "False 0"


@pytest.mark.parametrize(("environment", "expected"), [
    ({}, f"{KEPT} {ASLEEP}"),
    ({"IPU_MODEL_KEEP_MEMORY": "0", "OMP_WAIT_POLICY": "passive"}, "False True 0"),
    ({"IPU_MODEL_KEEP_MEMORY": "", "OMP_WAIT_POLICY": "ACTIVE"}, f"{KEPT} False 0"),
    ({"GOMP_SPINCOUNT": "1000000"}, f"{KEPT} False 0"),
])  # fmt: skip
def test_the_user_decides_and_idle_threads_end(environment: dict[str, str], expected: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=inherited | environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == expected


# The processor time that a process can get, read from made-up `proc` and `sys` folders.

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """A folder that looks like the root of a Linux machine with four cores, and clocks that a test sets."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.now, self.own, self.usable = root, 0.0, 0.0, {0, 1, 2, 3}
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "process_time", lambda: self.own)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: self.usable, raising=False)
        self.at_work(0, 0, 0, 0)

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def at_work(self, *seconds: float) -> None:
        """Set how long each core has been busy since the machine started; each was idle for 1,000 s."""
        lines = [f"cpu{core} {round(busy * TICKS)} 0 0 {1000 * TICKS} 0 0 0 0" for core, busy in enumerate(seconds)]
        self.write("proc/stat", "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "ctxt 1"]))

    def cores(self, change: Callable[[], None] = lambda: None) -> Cores:
        """Return what is measured while `change` happens."""
        watch = CoreWatch(self.root)
        change()
        return watch.cores()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(("cores", "free", "at_once"), [
    (Cores(4), 4, 4),
    (Cores(4, busy=1.5), 2.5, 4),
    (Cores(4, busy=4), 0, 4),  # a busy core is shared, not taken away
    (Cores(64, quota=2.5), 2.5, 2),
    (Cores(64, quota=0.5), 0.5, 1),
    (Cores(4, busy=3, quota=2.5), 1, 2),
])  # fmt: skip
def test_free_cores_are_those_that_nobody_uses_within_the_quota(cores: Cores, free: float, at_once: int) -> None:
    assert (cores.free, cores.at_once) == (free, at_once)


@pytest.mark.parametrize(("cores", "threads", "share"), [
    (Cores(4, busy=2), 2, 2),
    # Two threads beside two busy processes on two cores get half of them; one thread gets a third.
    (Cores(2, busy=2), 2, 1),
    (Cores(2, busy=2), 1, pytest.approx(2 / 3)),
    (Cores(64, quota=2), 8, 2),
])  # fmt: skip
def test_time_is_shared_evenly_where_cores_are_too_few(cores: Cores, threads: int, share: float) -> None:
    assert cores.share(threads) == share


@pytest.mark.parametrize(("usable", "seconds", "expected"), [
    ({0, 1, 2, 3}, (2, 2, 1, 0), Cores(4, busy=1.5)),  # 5 s of work in 2 s, of which 2 s are our own
    ({2, 3}, (2, 2, 2, 1), Cores(2, busy=0.5)),
    ({0, 1, 2, 3}, (2, 0.2, 0, 0), Cores(4)),  # noise of counting
])  # fmt: skip
def test_load_of_others_on_usable_cores(machine: Machine, usable: set[int], seconds: Any, expected: Cores) -> None:
    def work() -> None:
        machine.now, machine.own = 2.0, 2.0
        machine.at_work(*seconds)

    machine.usable = usable
    assert machine.cores(work) == expected


def test_waiting_for_a_disk_is_not_work_but_interrupts_and_a_hypervisor_are(machine: Machine) -> None:
    fields = {"user": 10, "nice": 10, "system": 10, "idle": 0, "iowait": 40, "irq": 10, "softirq": 10, "steal": 20}

    def work() -> None:
        machine.now = 1.0
        percent = " ".join(str(share * TICKS // 100) for share in fields.values())
        machine.write("proc/stat", f"cpu0 {percent} 10 10")

    assert machine.cores(work).busy == pytest.approx(0.7)


def test_without_figures_the_cores_count_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CoreWatch(tmp_path).cores() == Cores(usable_cores())
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert CoreWatch(tmp_path).cores() == Cores(10)


def version_1(folder: str, quota: int) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


# The lines of /proc/self/cgroup, the files below /sys/fs/cgroup, and the quota that they mean.
QUOTAS: dict[str, tuple[str, dict[str, str], float]] = {
    "no cgroup": ("", {}, math.inf),
    "version 2": ("0::/user.slice/mine", {"user.slice/mine/cpu.max": "150000 100000\n"}, 1.5),
    "version 2 beside version 1": ("0::/mine", {"unified/mine/cpu.max": "150000 100000\n"}, 1.5),
    "the smallest up to the root": (
        "0::/pod/container",
        {"pod/container/cpu.max": "max 100000", "pod/cpu.max": "200000 100000", "cpu.max": "800000 100000"},
        2,
    ),
    "version 1": ("7:memory:/elsewhere\n3:cpu:/mine\n0::/", version_1("cpu/mine", 50000), 0.5),
    "version 1, several controllers": ("3:cpu,cpuacct:/mine", version_1("cpu,cpuacct/mine", 50000), 0.5),
    "version 1 without": ("3:cpu:/", version_1("cpu", -1), math.inf),
    # A container sees its own folder as the root but the host's path.
    "a container": ("4:cpu,cpuacct:/docker/0123456789ab", version_1("cpu,cpuacct", 300000), 3),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_quotas(machine: Machine, case: str) -> None:
    cgroup, files, quota = QUOTAS[case]
    machine.write("proc/self/cgroup", cgroup)
    for name, text in files.items():
        machine.write(f"sys/fs/cgroup/{name}", text)
    assert machine.cores().quota == quota


# An interrupt waits inside `interrupt_postponed()`, until `deliver_interrupt()` or the end; a second does not wait.


@pytest.fixture
def pythons_own_handler() -> Iterator[None]:
    """A process that a shell started in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


INTERRUPTS = pytest.mark.usefixtures("pythons_own_handler")


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def in_another_body() -> None:
    with interrupt_postponed():
        interrupt()


@pytest.mark.parametrize(("actions", "done"), [
    ((interrupt,), 1),  # it waits for the end of the body
    ((deliver_interrupt, interrupt, deliver_interrupt), 2),  # or for a check
    ((interrupt, interrupt), 1),  # a body that is stuck can be left
    ((in_another_body,), 1),  # a body in a body leaves the interrupt to the outer one
])  # fmt: skip
@INTERRUPTS
def test_an_interrupt_waits(actions: tuple[Callable[[], None], ...], done: int) -> None:
    finished = []
    with pytest.raises(KeyboardInterrupt), interrupt_postponed():  # noqa: PT012
        for action in actions:
            action()
            finished.append(action)
    assert len(finished) == done


@INTERRUPTS
def test_an_error_of_the_body_is_the_context_of_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as raised, interrupt_postponed():  # noqa: PT012
        interrupt()
        raise ValueError("of the body")
    assert isinstance(raised.value.__context__, ValueError)


@pytest.mark.parametrize("fails", [False, True])
@INTERRUPTS
def test_the_programs_own_handler_is_called_and_back_afterwards(fails: bool) -> None:
    calls = []
    own = lambda number, frame: calls.append(number)  # noqa: E731
    signal.signal(signal.SIGINT, own)
    try:
        with interrupt_postponed():
            interrupt()
            assert calls == []
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert signal.getsignal(signal.SIGINT) is own
    assert calls == [signal.SIGINT]


@INTERRUPTS
def test_a_program_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupt_postponed():
        interrupt()
        deliver_interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


# --- how many threads a replay uses, from the work and the free cores, and what a run sets in PyTorch

MICROSECOND, MILLISECOND = 1e-6, 1e-3
TINY = Counter({ParallelWork(4 * MICROSECOND): 10})
SMALL = Counter({ParallelWork(400 * MICROSECOND): 20})
MEDIUM = Counter({ParallelWork(2 * MILLISECOND): 20})
LARGE = Counter({ParallelWork(80 * MILLISECOND): 5})
INDIVISIBLE = Counter({ParallelWork(80 * MILLISECOND, most=1): 5})
BUSY = Cores(2, busy=2)


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let PyTorch use four threads, whatever the machine has."""
    monkeypatch.delenv(SWITCH, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("work", "cores", "limit", "asleep", "threads"), [
    # On a free machine only tiny work uses one thread, on a busy one only large ops use several.
    (TINY, Cores(2), 2, False, 1), (SMALL, Cores(2), 2, False, 2), (LARGE, Cores(2), 2, False, 2),
    (TINY, BUSY, 2, False, 1), (SMALL, BUSY, 2, False, 1), (LARGE, BUSY, 2, False, 2),
    # With sleeping threads smaller ops do.
    (MEDIUM, BUSY, 2, False, 1), (MEDIUM, BUSY, 2, True, 2),
    # Small ops use the cores that are left.
    (SMALL, Cores(4, busy=2), 4, False, 2), (SMALL, Cores(4, busy=3), 4, False, 1),
    # Never more than the user set, nor than a quota.
    (LARGE, Cores(64), 3, False, 3), (LARGE, Cores(64, quota=2), 64, False, 2),
    (LARGE, Cores(64, quota=0.5), 64, False, 1),
    (INDIVISIBLE, Cores(8), 8, False, 1),
])  # fmt: skip
def test_the_number_of_threads(work: Any, cores: Cores, limit: int, asleep: bool, threads: int) -> None:
    assert choose(work, cores, limit, asleep=asleep) == threads


def work_in(model: nn.Module, *shape: int, training: bool = False) -> Counter[ParallelWork]:
    """Return the work of a micro-batch; seconds at one operation per second are numbers of operations."""
    return work_of(step_of(traced(model, torch.zeros(shape), training=training)), 1.0)


def convolution() -> Net:
    """A convolution of images of 10 x 10 pixels, and its loss."""
    return Net(lambda net, x: F.mse_loss(net.conv(x), torch.zeros(4, 8, 8, 8)), conv=nn.Conv2d(3, 8, 3, bias=False))


def test_contractions_count_their_multiplications_and_additions() -> None:
    assert work_in(nn.Linear(16, 32, bias=False), 8, 16) == Counter({ParallelWork(2 * 8 * 16 * 32): 1})
    forward = 2 * (4 * 8 * 8 * 8) * (3 * 3 * 3)
    # Backward computes only the weights' gradient, which takes as many operations: the input needs none.
    assert work_in(convolution(), 4, 3, 10, 10, training=True)[ParallelWork(forward)] == 2


def test_pytorch_divides_elements_only_in_large_parts_and_views_are_no_work() -> None:
    for elements, most in ((1000, 1), (4 * 32768, 4)):
        (piece,) = work_in(nn.Tanh(), elements)
        assert piece.most == most
    assert not work_in(nn.Flatten(), 4, 5, 6)


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_is_many_small_pieces_backward_as_many_as_forward(layer: type[nn.Module], gates: int) -> None:
    """In each of 10 steps 4 sequences meet the weights of the gates: 32 states by 16 inputs and 32 states."""
    model = Net(lambda net, x: F.mse_loss(net.layer(x)[0], torch.zeros(10, 4, 32)), layer=layer(16, 32))
    piece = ParallelWork(2 * 4 * gates * 32 * (16 + 32))
    assert work_in(model, 10, 4, 16)[piece] == 10
    # Nobody asks for the gradient of the input, so the first result of the backward op is that of a weight.
    assert work_in(model, 10, 4, 16, training=True)[piece] == 2 * 10


def test_a_run_uses_its_number_and_restores_the_users_even_within_a_run_or_after_an_error() -> None:
    """A run within a run happens when poptorch.CPU calls a function that runs another model."""
    seen: list[int] = []
    images = torch.zeros(4, 3, 10, 10)
    session = session_of(convolution(), images, threads=Threads(2))
    session.update = lambda gradients, scale: seen.append(torch.get_num_threads())
    session.run([images])
    with pytest.raises(ZeroDivisionError), Threads(2).in_use():  # noqa: PT012
        with Threads(1).in_use():
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())
        raise ZeroDivisionError
    assert seen == [2, 1, 2]
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("fixed", "used"), [(False, 1), (True, 2)])
def test_a_smaller_number_that_the_user_sets_later_applies_unless_one_is_fixed(fixed: bool, used: int) -> None:
    torch.set_num_threads(1)
    with Threads(2, fixed=fixed).in_use():
        assert torch.get_num_threads() == used
    assert torch.get_num_threads() == 1


def test_overlapping_runs_in_two_python_threads_restore_the_users_number() -> None:
    """The second begins while the first has set its own number, and ends after it."""
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()
    seen: list[int] = []

    def first() -> None:
        with Threads(1).in_use():
            first_is_in.set()
            second_is_in.wait(10)
        first_is_out.set()

    def second() -> None:
        first_is_in.wait(10)
        with Threads(2).in_use():
            seen.append(torch.get_num_threads())
            second_is_in.set()
            first_is_out.wait(10)

    for functions in ((first, second), (lambda: seen.append(torch.get_num_threads()),)):
        started = [threading.Thread(target=function) for function in functions]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(20)
    assert seen == [2, 4]


def test_programs_take_what_they_need_and_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, large = (
        step_of(traced(nn.Linear(size, size), torch.zeros(size, size), training=False)) for size in (4, 4096)
    )
    assert threads_for(tiny, CoreWatch()) == Threads(1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64), raising=False)
    for name, text in (("proc/self/cgroup", "0::/"), ("sys/fs/cgroup/cpu.max", "200000 100000")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert threads_for(large, CoreWatch(tmp_path)) == Threads(2)
    monkeypatch.setenv(SWITCH, "3")
    assert threads_for(tiny, CoreWatch()) == Threads(3, fixed=True)
    for mistake in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv(SWITCH, mistake)
        with pytest.raises(Error, match=f"IPU_MODEL_THREADS must be the number of threads .* got '{mistake}'"):
            threads_for(tiny, CoreWatch())
