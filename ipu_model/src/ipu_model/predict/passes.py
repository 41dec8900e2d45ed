"""Which stages' passes run at the same time: the cycles of a pipeline, grouped by what is active in them.

Symbols: K stages, G micro-batches per update, k a stage, m a micro-batch; k and m count from 0.

* Pipelined ("grouped" in TensorFlow's words): stage k runs the forward pass of m in cycle k + m, and its
  backward pass in cycle 2(K-1) - k + m; an update has G + 2(K-1) cycles (PopART, docs/notes/transforms/pipelining.md).
* Interleaved: in half cycles, with neighbouring stages in different passes. Stage k runs the forward pass of m in half
  cycle k + 2m, the backward pass in half cycle 2K-1 - k + 2m. Two half cycles count as one cycle here, and an update
  has 2(K+G) - 2 half cycles. At most K - k micro-batches of stage k are in flight, about half of the pipelined
  schedule's 2(K-1-k) + 1. Each further micro-batch takes at least as long as in the pipelined schedule; only filling
  and flushing can be faster, if stages are uneven.
* Sharded: stages run one after another, one micro-batch at a time.
* Inference: forward passes only, G + K - 1 cycles for G micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ipu_model.predict.program import Execution, Program


@dataclass(frozen=True)
class Beat:
    """What happens between two synchronisations of all IPUs: passes, then copies.

    `forward` and `backward` map the active stages to their lag: in cycle c they work on micro-batch c - lag.
    `sends_on` are the stages whose results are copied to the next stage, `sends_back` those that copy to the previous
    one.
    """

    forward: Mapping[int, int]
    backward: Mapping[int, int]
    sends_on: tuple[int, ...] = ()
    sends_back: tuple[int, ...] = ()


@dataclass(frozen=True)
class Interval:
    """`count` identical cycles from cycle `start` on, each made of the same beats.

    If `is_full` is true, every stage does all its passes; if `overlapped` is true, host transfers overlap with the
    work.
    """

    start: int
    count: int
    beats: tuple[Beat, ...]
    is_full: bool
    overlapped: bool = False


@dataclass(frozen=True)
class Round:
    """`repeats` identical updates with their micro-batches; for inference, the whole call."""

    intervals: tuple[Interval, ...]
    repeats: int = 1

    @property
    def cycles(self) -> int:
        """The cycles of one repetition."""
        return sum(interval.count for interval in self.intervals)


@dataclass(frozen=True)
class Shape:
    """The settings that determine the order of passes: `updates` updates of G = `micro_batches` micro-batches each."""

    stages: int
    micro_batches: int
    updates: int = 1
    training: bool = True
    execution: Execution = Execution.PIPELINED
    overlaps: bool = False


def rounds_of(shape: Shape) -> tuple[Round, ...]:
    """Return the rounds of one call; their number does not grow with the number of micro-batches or updates."""
    if shape.execution is Execution.SHARDED or shape.stages == 1:
        beats = _one_after_another(shape.stages, training=shape.training)
        return _overlapping(shape, Interval(0, shape.micro_batches, beats, is_full=True))
    interleaved = shape.execution is Execution.INTERLEAVED and shape.training
    tracks = _interleaved(shape.stages) if interleaved else (_grouped(shape.stages, training=shape.training),)
    return (Round(_intervals(tracks, shape), shape.updates),)


def _one_after_another(stages: int, *, training: bool) -> tuple[Beat, ...]:
    last = stages - 1
    on = [Beat({k: 0}, {}, sends_on=(k,)) for k in range(last)]
    if not training:
        return (*on, Beat({last: 0}, {}))
    back = [Beat({}, {k: 0}, sends_back=(k,) if k else ()) for k in reversed(range(last))]
    return (*on, Beat({last: 0}, {last: 0}, sends_back=(last,) if last else ()), *back)


def _overlapping(shape: Shape, interval: Interval) -> tuple[Round, ...]:
    """Return the rounds of a loop whose first and last cycle do not overlap: N iterations overlap N - 2 transfers."""
    plain = (Round((interval,), shape.updates),)
    if not shape.overlaps:
        return plain
    if shape.micro_batches > 2:
        hidden = replace(interval, start=1, count=interval.count - 2, overlapped=True)
        ends = replace(interval, count=1), replace(interval, start=interval.count - 1, count=1)
        return (Round((ends[0], hidden, ends[1]), shape.updates),)
    if shape.micro_batches == 1 and shape.updates > 2:  # the loop over device iterations
        hidden = replace(interval, overlapped=True)
        return Round((interval,)), Round((hidden,), shape.updates - 2), Round((interval,))
    return plain


@dataclass(frozen=True)
class _Track:
    """One of the beats of a cycle: the lags of the passes that run in it once the pipeline is full."""

    forward: Mapping[int, int]
    backward: Mapping[int, int]
    sends_on: tuple[int, ...]
    sends_back: tuple[int, ...]

    @property
    def lags(self) -> set[int]:
        return {*self.forward.values(), *self.backward.values()}


def _grouped(stages: int, *, training: bool) -> _Track:
    last = stages - 1
    backward = {k: 2 * last - k for k in range(stages)} if training else {}
    return _Track({k: k for k in range(stages)}, backward, tuple(range(last)), tuple(range(1, stages)) * training)


def _interleaved(stages: int) -> tuple[_Track, ...]:
    return tuple(
        _Track(
            {k: k // 2 for k in range(stages) if k % 2 == parity},
            {k: (2 * stages - 1 - k) // 2 for k in range(stages) if (k + 1) % 2 == parity},
            tuple(k for k in range(stages - 1) if k % 2 == parity),
            tuple(k for k in range(1, stages) if (k + 1) % 2 == parity),
        )
        for parity in (0, 1)
    )


def _intervals(tracks: tuple[_Track, ...], shape: Shape) -> tuple[Interval, ...]:
    """Return the cycles between the points at which some pass begins or ends: a pass with lag l runs in [l, l + G)."""
    count = shape.micro_batches
    lags: set[int] = set().union(*(track.lags for track in tracks))
    points = sorted({0} | lags | {lag + count for lag in lags})
    passes = 2 * shape.stages if shape.training else shape.stages
    found = []
    for start, end in pairwise(points):
        beats = tuple(
            Beat(_active(t.forward, start, count), _active(t.backward, start, count), t.sends_on, t.sends_back)
            for t in tracks
        )
        active = sum(len(beat.forward) + len(beat.backward) for beat in beats)
        found.append(Interval(start, end - start, beats, is_full=active == passes))
    return tuple(found)


def _active(lags: Mapping[int, int], cycle: int, count: int) -> dict[int, int]:
    return {stage: lag for stage, lag in lags.items() if lag <= cycle < lag + count}


def shape_of(program: Program) -> Shape:
    """Return the settings that determine a program's order of passes; in inference no update ends the pipeline."""
    batching = program.batching
    return Shape(
        stages=len(program.step.stages),
        micro_batches=batching.accumulation if program.training else batching.steps,
        updates=batching.device_iterations if program.training else 1,
        training=program.training,
        execution=program.execution,
        overlaps=program.overlaps_input or program.overlaps_output,
    )
