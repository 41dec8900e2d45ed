"""The number of threads of a replay: on busy machines, small ops are many times slower with all than with one."""

from __future__ import annotations

import os
import sys
import threading
import timeit
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import torch
from torch.utils.flop_counter import flop_registry

from ipu_model.cores import Cores, CoreWatch, usable_cores
from ipu_model.errors import Error
from ipu_model.process import ForkSafeLock
from ipu_model.step import Ref, Source, Step

SWITCH = "IPU_MODEL_THREADS"

# Rough estimates: the choice is wrong only if these are off by a factor of several.
_ELEMENTS_PER_SECOND = 1e9
_CALL_SECONDS = 5e-6
# Ops that loop over time steps, as `ipu_model.capture.device_ops` records them: where their inputs [T, N, I] are.
_RECURRENT = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), 0),
    **dict.fromkeys(("lstm_backward", "gru_backward", "rnn_tanh_backward", "rnn_relu_backward"), 2),
}
# PyTorch gives an op another thread for every so many elements (at::internal::GRAIN_SIZE).
GRAIN = 32768
# The time to hand an op to threads that are awake and to join them.
_FORK_SECONDS, _FORK_SECONDS_PER_THREAD = 10e-6, 1e-6
# How long an op waits for a thread whose core another process has: measured on Linux, 1 to 30 ms if threads spin.
_SPINNING_SECONDS, _SLEEPING_SECONDS = 5e-3, 1e-4
# Use more threads only if they save more than this factor, because they take cores from other processes.
_WORTHWHILE = 1.05
# In a shorter time, the load of other processes is lost in the noise of counting clock ticks.
_WATCH_SECONDS = 0.2
# On machines with more cores, so many additional threads are costly, and free cores are easier to find.
_MOST_CORES = 16
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Threads:
    """The number of threads of a replay; unless it is `fixed`, the user can lower it later with `set_num_threads`."""

    number: int
    fixed: bool = False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        around: int | None = getattr(_own, "number", None)  # of a replay in this Python thread that calls this one
        with _setting.lock:
            if _setting.replays == 0:
                # Only the first replay may read it: a later one would see the number that another replay has set.
                _setting.users_number = torch.get_num_threads()
            _setting.replays += 1
            _own.number = self.number if self.fixed else min(self.number, _setting.users_number)
            torch.set_num_threads(_own.number)
        try:
            yield
        finally:
            with _setting.lock:
                _setting.replays -= 1
                torch.set_num_threads(_setting.users_number if around is None else around)
                _own.number = around


class _Setting(ForkSafeLock):
    replays = 0
    users_number = 1


_setting, _own = _Setting(), threading.local()


@dataclass(frozen=True)
class ParallelWork:
    """Work that all threads begin and end together: its seconds on one thread, and the most threads that it can use."""

    seconds: float
    most: int = sys.maxsize


def threads_for(step: Step, watch: CoreWatch) -> Threads:
    """Choose the threads for replays of `step`, at most torch's number; `IPU_MODEL_THREADS` overrides the choice."""
    fixed = os.environ.get(SWITCH, "")
    if fixed:
        if not (fixed.isascii() and fixed.isdigit() and int(fixed)):
            raise Error(f"{SWITCH} must be the number of threads for a replay, 1 or more; got {fixed!r}.")
        if int(fixed) > 1:
            wait_asleep()
        return Threads(int(fixed), fixed=True)
    limit = torch.get_num_threads()
    if limit == 1:
        return Threads(1)
    work = work_of(step, _flops_per_second())
    cores = watch.cores()
    # Watch the machine for longer only if the program benefits from threads at all.
    if choose(work, Cores(cores.usable, quota=cores.quota), limit) == 1:
        return Threads(1)
    return Threads(choose(work, watch.cores(_WATCH_SECONDS), limit, asleep=wait_asleep()))


def choose(work: Mapping[ParallelWork, int], cores: Cores, limit: int, *, asleep: bool = False) -> int:
    """Return the fewest threads with which `work` takes at most 5 % longer than at best; `asleep` ones do not spin."""
    wait = _SLEEPING_SECONDS if asleep else _SPINNING_SECONDS

    def seconds(part: ParallelWork, threads: int) -> float:
        threads = min(threads, part.most)
        computing = part.seconds / cores.share(threads) + _CALL_SECONDS
        if threads == 1:
            return computing
        sharing = min(1.0, max(0.0, threads - cores.free))
        return computing + _FORK_SECONDS + _FORK_SECONDS_PER_THREAD * threads + wait * sharing

    candidates = range(1, min(limit, cores.at_once) + 1)
    totals = [sum(count * seconds(part, threads) for part, count in work.items()) for threads in candidates]
    return next(threads for threads, total in zip(candidates, totals) if total <= _WORTHWHILE * min(totals))


def work_of(step: Step, flops_per_second: float) -> Counter[ParallelWork]:
    """Count the work in one micro-batch of a step; `flops_per_second` is the rate of one core in matrix products."""
    work: Counter[ParallelWork] = Counter()
    for op in step.ops:
        if op.is_view:
            continue
        operands = step.read_by(op)
        inputs = op.arguments[_RECURRENT[op.kind]] if op.kind in _RECURRENT else None
        if isinstance(inputs, Ref):
            # A loop over time steps, in each of which all sequences are multiplied by all weights.
            steps, sequences, _ = step.tensors[inputs].shape
            matrices = (operand for operand in operands if len(operand.shape) == 2)
            weights = sum(m.elements for m in matrices if step.source(m.name) is Source.VARIABLE)
            work[ParallelWork(2 * sequences * weights / flops_per_second)] += steps
            continue
        flops = 0.0
        if getattr(torch.ops.aten, op.kind, None) in flop_registry:
            arguments = tuple(step.tensors[value].shape if isinstance(value, Ref) else value for value in op.arguments)
            flops = _flops(op.kind, arguments, tuple(() if result is None else result.shape for result in op.results))
        if flops:
            work[ParallelWork(flops / flops_per_second)] += 1
        else:
            elements = max((tensor.stored for tensor in (*operands, *step.results_of(op))), default=0)
            work[ParallelWork(elements / _ELEMENTS_PER_SECOND, most=max(1, elements // GRAIN))] += 1
    return work


@lru_cache(maxsize=1024)
def _flops(kind: str, arguments: tuple[object, ...], shapes: tuple[tuple[int, ...], ...]) -> float:
    """Count an op's multiplications and additions; cached, because networks repeat ops and torch's function is slow."""
    count = flop_registry[getattr(torch.ops.aten, kind)]
    return float(count(*arguments, out_val=shapes[0] if len(shapes) == 1 else shapes))


@cache
def _flops_per_second() -> float:
    """Measure, once per process, the rate of one core in matrix products; this takes some milliseconds."""
    size, device = 384, torch.device("cpu")
    matrix = torch.ones((size, size), dtype=torch.float32, device=device)
    with torch.no_grad(), torch.autocast("cpu", enabled=False), Threads(1).in_use():
        # The fastest of several is one that no other process has interrupted.
        return 2 * size**3 / min(timeit.repeat(lambda: torch.mm(matrix, matrix), number=1, repeat=8))


def wait_asleep() -> bool:
    """Let waiting threads of this process sleep, from now on; return whether they do.

    GNU's OpenMP lets waiting threads spin for milliseconds, on busy cores instead of the thread that they wait for. If
    a process has more OpenMP threads than there are cores, they soon sleep. We therefore start as many additional
    threads, which sleep all the time. `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT` decide instead, if they are set.
    """
    policy = os.environ.get("OMP_WAIT_POLICY", "").strip().lower()
    if policy or "GOMP_SPINCOUNT" in os.environ:
        return policy == "passive"
    return 1 < usable_cores() <= _MOST_CORES and _has_idle_threads()


@cache
def _has_idle_threads() -> bool:
    """Start OpenMP's idle threads, once; each Python thread has its own. Return whether there are any."""
    try:
        if "libgomp" not in Path("/proc/self/maps").read_text():
            return False
    except OSError:
        return False
    started = threading.Event()

    def start_them_and_sleep() -> None:
        count = usable_cores()
        with Threads(count, fixed=True).in_use():
            torch.ones(count * GRAIN, dtype=torch.float32, device="cpu").add_(1)
        started.set()
        threading.Event().wait()

    threading.Thread(target=start_them_and_sleep, name="ipu-model-idle", daemon=True).start()
    return started.wait(_PATIENCE_SECONDS)
