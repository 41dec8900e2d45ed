"""The order of execution: what stages stash, hold and send, and in which cycles passes run, for memory and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from ipu_model.predict.device import Element
from ipu_model.predict.program import Execution, Program
from ipu_model.predict.recomputation import OpRun, Recomputed, kept_for_backward, sequence_of, values_read_by
from ipu_model.predict.remembered import remembered
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
    shape = Shape(
        stages=stages,
        micro_batches=batching.accumulation if training else batching.steps,
        updates=batching.device_iterations if training else 1,  # in inference no update ends the pipeline
        training=training,
        execution=program.execution,
        overlaps=program.overlaps_input or program.overlaps_output,
    )
    return Order(
        kept=kept,
        sequence=sequence_of(step, kept),
        held=held_tensors(step, kept) if training else (),
        slots=tuple(stash_slots(program.execution, stages, s) if training else 0 for s in range(stages)),
        traffic=traffic_of(step),
        rounds=rounds_of(shape),
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
    if shape.execution is Execution.INTERLEAVED and shape.training:
        return (Round(_intervals(_interleaved(shape.stages), shape), shape.updates),)
    stages = range(shape.stages)
    backward = {k: 2 * (shape.stages - 1) - k for k in stages} if shape.training else {}
    beat = Beat({k: k for k in stages}, backward, tuple(stages[:-1]), tuple(stages[1:]) * shape.training)
    return (Round(_intervals((beat,), shape), shape.updates),)


def _one_after_another(stages: int, *, training: bool) -> tuple[Beat, ...]:
    last = stages - 1
    on = [Beat({k: 0}, {}, sends_on=(k,)) for k in range(last)]
    if not training:
        return (*on, Beat({last: 0}, {}))
    back = [Beat({}, {k: 0}, sends_back=(k,) if k else ()) for k in reversed(range(last))]
    return (*on, Beat({last: 0}, {last: 0}, sends_back=(last,) if last else ()), *back)


def _overlapping(shape: Shape, interval: Interval) -> tuple[Round, ...]:
    """Return the rounds of a loop whose first and last cycle do not overlap: N iterations overlap N - 2 transfers."""
    if shape.overlaps and shape.micro_batches > 2:
        first, last = replace(interval, count=1), replace(interval, start=interval.count - 1, count=1)
        hidden = replace(interval, start=1, count=interval.count - 2, overlapped=True)
        return (Round((first, hidden, last), shape.updates),)
    if shape.overlaps and shape.micro_batches == 1 and shape.updates > 2:  # the loop over device iterations
        hidden = replace(interval, overlapped=True)
        return Round((interval,)), Round((hidden,), shape.updates - 2), Round((interval,))
    return (Round((interval,), shape.updates),)


def _interleaved(stages: int) -> tuple[Beat, ...]:
    return tuple(
        Beat(
            {k: k // 2 for k in range(stages) if k % 2 == parity},
            {k: (2 * stages - 1 - k) // 2 for k in range(stages) if (k + 1) % 2 == parity},
            tuple(k for k in range(stages - 1) if k % 2 == parity),
            tuple(k for k in range(1, stages) if (k + 1) % 2 == parity),
        )
        for parity in (0, 1)
    )


def _intervals(full: tuple[Beat, ...], shape: Shape) -> tuple[Interval, ...]:
    count = shape.micro_batches
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
