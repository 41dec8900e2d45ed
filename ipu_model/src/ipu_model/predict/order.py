"""The order of execution: what stages stash, hold and send, and in which cycles passes run, for memory and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from ipu_model.predict.device import Element
from ipu_model.predict.program import Execution, Program, remembered
from ipu_model.predict.recomputation import OpRun, Recomputed, kept_for_backward, sequence_of, values_read_by
from ipu_model.step import Source, Step, Tensor


@dataclass(frozen=True)
class Order:
    """The order of one call: runs of ops, what is held in how many `slots` of a stage, and the cycles of passes."""

    kept: Recomputed
    sequence: tuple[OpRun, ...]
    held: tuple[Held, ...]
    slots: tuple[int, ...]
    traffic: Traffic
    rounds: tuple[Round, ...]
    micro_batches: int
    is_pipelined: bool

    def executions(self, op: str) -> int:
        return self.micro_batches * (2 if op in self.kept.again else 1)


def order_of(program: Program) -> Order:
    step, batching, training = program.step, program.batching, program.training
    kept = kept_for_backward(program)
    stages = len(step.stages)
    return Order(
        kept=kept,
        sequence=sequence_of(step, kept),
        held=held_tensors(step, kept) if training else (),
        slots=tuple(stash_slots(program.execution, stages, s) if training else 0 for s in range(stages)),
        traffic=traffic_of(step),
        rounds=rounds_of(
            stages,
            batching.accumulation if training else batching.steps,
            batching.device_iterations if training else 1,  # in inference no update ends the pipeline
            training=training,
            execution=program.execution,
            overlaps=program.overlaps_input or program.overlaps_output,
        ),
        micro_batches=batching.steps,
        is_pipelined=program.execution is not Execution.SHARDED and stages > 1,
    )


def stash_slots(execution: Execution, stages: int, stage: int) -> int:
    """Return how many micro-batches a stage stashes at once between their forward and backward passes.

    Of K stages, stage s has 2 (K - 1 - s) + 1 slots: that many micro-batches enter it between the forward and the
    backward pass of one (PopART, transforms/pipeline.cpp). Interleaved schedules need K - 1 - s + 1 ("Memory and
    Performance Optimisation on the IPU", 4.2). The last stage, and one that works on one micro-batch at a time, needs
    none.
    """
    behind = stages - 1 - stage
    if execution is Execution.SHARDED or behind == 0:
        return 0
    return (behind if execution is Execution.INTERLEAVED else 2 * behind) + 1


@dataclass(frozen=True)
class Held:
    stage: int
    tensor: Tensor


@remembered
def held_tensors(step: Step, kept: Recomputed) -> tuple[Held, ...]:
    """Return what each stage keeps of a micro-batch: stored results, and inputs from the host or other stages."""
    held: dict[tuple[int, str], Held] = {}
    for op in step.ops:
        for tensor in values_read_by(op, step) if op.is_backward or op.name in kept.again else ():
            root = step.root(tensor.name)
            maker = step.producer(root.name)
            if maker is None:
                is_held = step.source(root.name) is Source.INPUT
            else:
                is_held = not maker.is_backward and (maker.name in kept.stored or maker.stage != op.stage)
            if is_held:
                held[op.stage, root.name] = Held(op.stage, root)
    return tuple(held.values())


class Traffic(NamedTuple):
    """Bytes of a micro-batch by stage: from and to the host, `on` to the next stage, `back` to the one before."""

    inputs: tuple[float, ...]
    outputs: tuple[float, ...]
    on: tuple[float, ...]
    back: tuple[float, ...]


@remembered
def traffic_of(step: Step) -> Traffic:
    """Return the bytes that a micro-batch moves; 64-bit elements travel as 32-bit ones."""
    inputs, outputs, on, back = ([0.0] * len(step.stages) for _ in range(4))
    # Each input enters at the stage that first reads it. Inputs that nothing reads are not sent.
    entering = {}
    for tensor in step.inputs:  # as the host sends it, which may be in bytes
        if tensor.name in step.readers:
            stage = entering[tensor.name] = min(reader.stage for reader in step.readers[tensor.name])
            inputs[stage] += device_bytes(tensor)
    for name in step.outputs:
        maker = step.producer(name)
        outputs[0 if maker is None else maker.stage] += device_bytes(step.tensors[name])
    for tensor, source, target in _crossings(step, entering):
        size = device_bytes(tensor)
        for stage in range(source, target):
            on[stage] += size
        for stage in range(source, target, -1):
            back[stage] += size
    return Traffic(tuple(inputs), tuple(outputs), tuple(on), tuple(back))


def device_bytes(tensor: Tensor) -> int:
    return tensor.elements * Element.of(tensor.dtype).bytes


def _crossings(step: Step, entering: dict[str, int]) -> Iterator[tuple[Tensor, int, int]]:
    """Yield each tensor that other IPUs read, with its own stage and the farthest of their stages on either side.

    Only IPUs exchange copies (PopART's IpuCopy). A weight lives where it is read first; it goes to others, and their
    parts of the gradient come back, with every micro-batch.
    """
    if len(step.stages) == 1:
        return
    weights = (variable.tensor for variable in step.variables if variable.trainable)
    homes = {name: step.readers[name][0].stage for name in weights if name in step.readers}
    sources = {**entering, **homes}
    for tensor in step.tensors.values():
        maker = step.producer(tensor.name)
        own = sources.get(tensor.name) if maker is None else maker.stage
        if own is None:
            continue
        ipu = step.stages[own].ipu
        reading = {reader.stage for reader in step.readers.get(tensor.name, ()) if reader.ipu != ipu}
        if reading and max(reading) > own:
            yield tensor, own, max(reading)
        if reading and min(reading) < own:
            yield tensor, own, min(reading)


# ------------------------------------------------------- which stages' passes run at the same time
#
# K stages, G micro-batches per update, k a stage, m a micro-batch; k and m count from 0.
#
# * Pipelined ("grouped" in TensorFlow's words): stage k runs the forward pass of m in cycle k + m, and its backward
#   pass in cycle 2(K-1) - k + m; an update has G + 2(K-1) cycles (PopART, docs/notes/transforms/pipelining.md).
# * Interleaved: in half cycles, with neighbouring stages in different passes. Stage k runs the forward pass of m in
#   half cycle k + 2m, the backward pass in half cycle 2K-1 - k + 2m. Two half cycles count as one cycle here, and an
#   update has 2(K+G) - 2 half cycles. At most K - k micro-batches of stage k are in flight, about half of the pipelined
#   schedule's 2(K-1-k) + 1. Each further micro-batch takes at least as long as in the pipelined schedule; only filling
#   and flushing can be faster, if stages are uneven.
# * Sharded: stages run one after another, one micro-batch at a time.
# * Inference: forward passes only, G + K - 1 cycles for G micro-batches.


@dataclass(frozen=True)
class Beat:
    """Passes by stage with their lag (in cycle c they work on micro-batch c - lag), then copies to neighbours."""

    forward: Mapping[int, int]
    backward: Mapping[int, int]
    sends_on: tuple[int, ...] = ()
    sends_back: tuple[int, ...] = ()


@dataclass(frozen=True)
class Interval:
    """`count` identical cycles from `start` on; `is_full`: every stage does all its passes."""

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
        return sum(interval.count for interval in self.intervals)

    @property
    def micro_batches(self) -> int:
        """The micro-batches of one update: each is in a stage some `lag` after the cycle that has its number."""
        beats = (beat for interval in self.intervals for beat in interval.beats)
        return self.cycles - max(lag for beat in beats for lag in (*beat.forward.values(), *beat.backward.values()))


def rounds_of(
    stages: int,
    micro_batches: int,
    updates: int = 1,
    *,
    training: bool = True,
    execution: Execution = Execution.PIPELINED,
    overlaps: bool = False,
) -> tuple[Round, ...]:
    """Return the rounds of one call, `updates` of G `micro_batches` each; their number does not grow with either."""
    every, last, passes = range(stages), stages - 1, list[tuple[dict[int, int], dict[int, int]]]()
    if execution is Execution.SHARDED or stages == 1:
        passes += [({k: 0}, {last: 0} if training and k == last else {}) for k in every]
        passes += [({}, {k: 0}) for k in reversed(every[:-1]) if training]
        interval = Interval(0, micro_batches, _beats(passes, last), is_full=True)
        return _overlapping(interval, updates) if overlaps else (Round((interval,), updates),)
    if execution is Execution.INTERLEAVED and training:
        for parity in (0, 1):
            forward = {k: k // 2 for k in every if k % 2 == parity}
            passes.append((forward, {k: (2 * stages - 1 - k) // 2 for k in every if k % 2 != parity}))
    else:
        passes.append(({k: k for k in every}, {k: 2 * last - k for k in every if training}))
    return (Round(_intervals(_beats(passes, last), micro_batches), updates),)


def _beats(passes: Iterable[tuple[Mapping[int, int], Mapping[int, int]]], last: int) -> tuple[Beat, ...]:
    """Return beats of these passes, forward and backward, after which all stages but the `last`, or 0, send results."""
    return tuple(
        Beat(forward, backward, tuple(k for k in forward if k < last), tuple(k for k in backward if k))
        for forward, backward in passes
    )


def _overlapping(interval: Interval, updates: int) -> tuple[Round, ...]:
    """Return the rounds of a loop whose first and last cycle do not overlap: N iterations overlap N - 2 transfers."""
    if interval.count > 2:
        first, last = replace(interval, count=1), replace(interval, start=interval.count - 1, count=1)
        hidden = replace(interval, start=1, count=interval.count - 2, overlapped=True)
        return (Round((first, hidden, last), updates),)
    if interval.count == 1 and updates > 2:  # the loop over device iterations
        hidden = replace(interval, overlapped=True)
        return Round((interval,)), Round((hidden,), updates - 2), Round((interval,))
    return (Round((interval,), updates),)


def _intervals(full: tuple[Beat, ...], count: int) -> tuple[Interval, ...]:
    """Return the cycles in which `count` micro-batches pass through `full` beats, alike ones together."""
    lags = {lag for beat in full for passes in (beat.forward, beat.backward) for lag in passes.values()}
    points = sorted({0} | lags | {lag + count for lag in lags})
    intervals = []
    for start, end in pairwise(points):
        beats = tuple(
            replace(beat, forward=_active(beat.forward, start, count), backward=_active(beat.backward, start, count))
            for beat in full
        )
        intervals.append(Interval(start, end - start, beats, is_full=beats == full))
    return tuple(intervals)


def _active(lags: Mapping[int, int], cycle: int, count: int) -> dict[int, int]:
    return {stage: lag for stage, lag in lags.items() if lag <= cycle < lag + count}
