"""Other ways to the time of a pipeline, for tests: the plain sum over all cycles, and dependencies without barriers."""

from __future__ import annotations

from collections.abc import Sequence

from schedule_support import Times


def plain_sum(times: Sequence[Times], micro_batches: int) -> float:
    """Add up all G + 2(K-1) cycles of an update one by one, from the rules alone (unit rates, no synchronisation)."""
    last = len(times) - 1
    total = 0.0
    for cycle in range(micro_batches + 2 * last):
        forward = [k for k in range(len(times)) if k <= cycle <= k + micro_batches - 1]
        backward = [k for k in range(len(times)) if 2 * last - k <= cycle <= 2 * last - k + micro_batches - 1]
        total += _slowest(times, forward, backward) + _copies(times)
        total += _transfers(times, [(k, times[k].inputs) for k in forward])
        total += _transfers(times, [(k, times[k].outputs) for k in forward])
    return total


def _slowest(times: Sequence[Times], forward: Sequence[int], backward: Sequence[int]) -> float:
    work: dict[int, float] = {}
    for k in forward:
        work[_ipu(times, k)] = work.get(_ipu(times, k), 0.0) + times[k].forward
    for k in backward:
        work[_ipu(times, k)] = work.get(_ipu(times, k), 0.0) + times[k].behind
    return max(work.values())


def _copies(times: Sequence[Times]) -> float:
    """Copies of one direction of one pair of IPUs follow one another; all pairs and directions copy at once."""
    moved: dict[tuple[int, int], float] = {}
    for k in range(len(times) - 1):
        here, there = _ipu(times, k), _ipu(times, k + 1)
        moved[here, there] = moved.get((here, there), 0.0) + times[k].on
        moved[there, here] = moved.get((there, here), 0.0) + times[k + 1].back
    return max(moved.values(), default=0.0)


def _transfers(times: Sequence[Times], sizes: Sequence[tuple[int, float]]) -> float:
    """The host refills buffers one after another; IPUs transfer at once, and complete at once."""
    moved: dict[int, float] = {}
    for k, size in sizes:
        moved[_ipu(times, k)] = moved.get(_ipu(times, k), 0.0) + size
    return sum(moved.values()) + 2 * max(moved.values(), default=0.0)


def _ipu(times: Sequence[Times], k: int) -> int:
    own = times[k].ipu
    return k if own is None else own


def without_barriers(times: Sequence[Times], micro_batches: int) -> float:
    """Return the makespan of the same order of passes on each IPU, if only data dependencies made them wait.

    Every pass starts when its IPU is done with the pass before and its data are there: a recurrence over finished
    passes, one IPU a stage, without transfers.
    """
    last = len(times) - 1
    order = sorted(
        (cycle, direction, k, m)
        for k in range(last + 1)
        for m in range(micro_batches)
        for cycle, direction in ((k + m, 0), (2 * last - k + m, 1))
    )
    # Within a cycle the last stage's forward pass comes before its backward pass; nothing else depends on its cycle.
    done: dict[tuple[int, int, int], float] = {}
    free = [0.0] * (last + 1)
    for _, direction, k, m in order:
        if direction == 0:
            ready = done[0, k - 1, m] if k else 0.0
        else:
            ready = done[1, k + 1, m] if k < last else done[0, last, m]
        free[k] = max(free[k], ready) + (times[k].behind if direction else times[k].forward)
        done[direction, k, m] = free[k]
    return max(free)
