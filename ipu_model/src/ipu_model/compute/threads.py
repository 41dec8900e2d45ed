"""The number of threads that a replay computes with, chosen once, when a program is compiled.

All threads of an op wait for the slowest one. A thread that has to share its core with another process keeps the
others waiting until the scheduler gives it its turn, some milliseconds for each op. On a busy machine a program of
small ops is therefore many times slower with all threads than with one, while a program of large ops is faster.
"""

from __future__ import annotations

import os
import sys
import timeit
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch.utils.flop_counter import flop_registry

from ipu_model.compute.thread_setting import Threads
from ipu_model.compute.waiting import GRAIN, wait_asleep
from ipu_model.cores import Cores, CoreWatch
from ipu_model.errors import Error
from ipu_model.step import Op, Ref, Source, Step

SWITCH = "IPU_MODEL_THREADS"

# Roughly: a choice is wrong only if these are wrong by several times.
_ELEMENTS_PER_SECOND = 1e9
_CALL_SECONDS = 5e-6
# Ops that loop over time steps, as `ipu_model.capture.device_ops` records them.
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
# What it takes to hand an op to threads that are awake and to join them.
_FORK_SECONDS, _FORK_SECONDS_PER_THREAD = 10e-6, 1e-6
# How long an op waits for a thread whose core another process has: measured on Linux, 1 to 30 ms if threads spin.
_SPINNING_SECONDS, _SLEEPING_SECONDS = 5e-3, 1e-4
# More threads than this one saves time by are not worth what they take from others.
_WORTHWHILE = 1.05
# Shorter than that, what others take cannot be told from the noise of counting in clock ticks.
_WATCH_SECONDS = 0.2


@dataclass(frozen=True)
class Piece:
    """Work that starts and ends together on all threads: seconds on one thread, for at most `most` threads."""

    seconds: float
    most: int = sys.maxsize


MACHINE = CoreWatch()


def threads_for(step: Step, watch: CoreWatch = MACHINE) -> Threads:
    """Choose the number of threads for replays of `step`, at most as many as PyTorch is set to use now.

    Let `watch` look at the machine when the compilation begins. If the environment variable `IPU_MODEL_THREADS` is
    set, it is the number.

    Raises:
        Error: `IPU_MODEL_THREADS` is not a positive whole number.
    """
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
    # Only a program that profits from threads at all is worth a longer look at the machine.
    if choose(work, Cores(cores.usable, quota=cores.quota), limit) == 1:
        return Threads(1)
    return Threads(choose(work, watch.cores(_WATCH_SECONDS), limit, asleep=wait_asleep()))


def choose(work: Mapping[Piece, int], cores: Cores, limit: int, *, asleep: bool = False) -> int:
    """Return the smallest number of threads, up to `limit`, with which `work` takes hardly longer than at best.

    `asleep` says that threads sleep instead of spinning while they wait for each other.
    """
    turn = _SLEEPING_SECONDS if asleep else _SPINNING_SECONDS
    candidates = range(1, min(limit, cores.at_once) + 1)
    seconds = {threads: _seconds(work, cores, threads, turn) for threads in candidates}
    enough = _WORTHWHILE * min(seconds.values())
    return next(threads for threads in candidates if seconds[threads] <= enough)


def _seconds(work: Mapping[Piece, int], cores: Cores, threads: int, turn: float) -> float:
    return sum(n * _piece_seconds(piece, cores, min(threads, piece.most), turn) for piece, n in work.items())


def _piece_seconds(piece: Piece, cores: Cores, threads: int, turn: float) -> float:
    computing = piece.seconds / cores.share(threads) + _CALL_SECONDS
    if threads == 1:
        return computing
    sharing = min(1.0, max(0.0, threads - cores.free))
    return computing + _FORK_SECONDS + _FORK_SECONDS_PER_THREAD * threads + turn * sharing


def work_of(step: Step, flops_per_second: float) -> Counter[Piece]:
    """Return the pieces of work in one micro-batch of a step, each with how often it occurs.

    `flops_per_second` is what one core computes of matrix products.
    """
    work: Counter[Piece] = Counter()
    for op in step.ops:
        if not op.is_view:
            piece, count = _piece(op, step, flops_per_second)
            work[piece] += count
    return work


def _piece(op: Op, step: Step, flops_per_second: float) -> tuple[Piece, int]:
    operands, results = step.read_by(op), step.results_of(op)
    if op.kind.removesuffix("_backward") in _RECURRENT and results:
        # A loop over time steps, in each of which all sequences are multiplied by all weights.
        steps, sequences, *_ = results[0].shape
        weights = sum(
            each.elements for each in operands if len(each.shape) == 2 and step.source(each.name) is Source.VARIABLE
        )
        return Piece(2 * sequences * weights / flops_per_second), steps
    flops = _flops(op, step)
    if flops:
        return Piece(flops / flops_per_second), 1
    elements = max((tensor.stored for tensor in (*operands, *results)), default=0)
    return Piece(elements / _ELEMENTS_PER_SECOND, most=max(1, elements // GRAIN)), 1


def _flops(op: Op, step: Step) -> float:
    """Return the multiplications and additions of a matrix product or convolution, 0 for other ops."""
    if getattr(torch.ops.aten, op.kind, None) not in flop_registry:
        return 0.0
    arguments = tuple(step.tensors[each].shape if isinstance(each, Ref) else each for each in op.arguments)
    return _counted(op.kind, arguments, tuple(() if each is None else each.shape for each in op.results))


@lru_cache(maxsize=1024)
def _counted(kind: str, arguments: tuple[object, ...], shapes: tuple[tuple[int, ...], ...]) -> float:
    """Count the operations of an op; networks repeat theirs, and torch's function takes a while."""
    count = flop_registry[getattr(torch.ops.aten, kind)]
    return float(count(*arguments, out_val=shapes[0] if len(shapes) == 1 else shapes))


@cache
def _flops_per_second() -> float:
    """Measure, once per process, what one core computes of matrix products; takes some milliseconds."""
    size, device = 384, torch.device("cpu")
    matrix = torch.ones((size, size), dtype=torch.float32, device=device)
    with torch.no_grad(), torch.autocast("cpu", enabled=False), Threads(1).in_use():
        # The fastest of several is one that no other process has interrupted.
        return 2 * size**3 / min(timeit.repeat(lambda: torch.mm(matrix, matrix), number=1, repeat=8))
