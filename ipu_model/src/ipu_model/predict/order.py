"""The order of execution and the tensors kept meanwhile, decided once for both memory and time.

This module decides how many micro-batches each stage stashes and what it holds of each, and what goes from stage to
stage. `ipu_model.predict.recomputation` decides what is kept for the backward pass, what runs again instead, and in
which sequence; `ipu_model.predict.passes` in which cycles the passes of stages run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ipu_model.predict.device import Element
from ipu_model.predict.passes import Round, rounds_of, shape_of
from ipu_model.predict.program import Execution, Program
from ipu_model.predict.recomputation import Kept, OpRun, kept_for_backward, sequence_of, values_read_by
from ipu_model.predict.remembered import remembered
from ipu_model.step import Source, Step, Tensor


@dataclass(frozen=True)
class Order:
    """The order of one call of a program.

    `sequence` has every execution of an op for one micro-batch, in order. `slots` is the number of micro-batches that
    each stage stashes between forward and backward pass, 0 for stages without a stash. `micro_batches` is the number
    that one replica runs in a call, in the cycles of `rounds`.
    """

    kept: Kept
    sequence: tuple[OpRun, ...]
    held: tuple[Held, ...]
    slots: tuple[int, ...]
    traffic: Traffic
    rounds: tuple[Round, ...]
    micro_batches: int
    is_pipelined: bool

    def executions(self, op: str) -> int:
        """Return how often an op runs in a call: once for a micro-batch, twice where it is recomputed."""
        return self.micro_batches * (2 if op in self.kept.again else 1)

    def sequence_of_stage(self, stage: int) -> tuple[OpRun, ...]:
        """Return what one stage runs for a micro-batch, in order."""
        return tuple(run for run in self.sequence if run.stage == stage)


def order_of(program: Program) -> Order:
    """Return the order in which a program runs its passes, and what it keeps between them."""
    step, kept = program.step, kept_for_backward(program)
    stages = len(step.stages)
    return Order(
        kept=kept,
        sequence=sequence_of(program),
        held=held_tensors(program, kept),
        slots=tuple(stash_slots(program.execution, stages, s) if program.training else 0 for s in range(stages)),
        traffic=traffic_of(step),
        rounds=rounds_of(shape_of(program)),
        micro_batches=program.batching.steps,
        is_pipelined=program.execution is not Execution.SHARDED and stages > 1,
    )


# ------------------------------------------------------------------------------- stashes


def stash_slots(execution: Execution, stages: int, stage: int) -> int:
    """Return how many micro-batches a stage stashes at once between their forward and backward passes.

    Of K stages, stage s has 2 (K - 1 - s) + 1 slots: that many micro-batches enter it between the forward and the
    backward pass of one (PopART, transforms/pipeline.cpp). Interleaved schedules alternate the two passes and need K -
    1 - s + 1 ("Memory and Performance Optimisation on the IPU", 4.2). The last stage needs no slot because its backward
    pass follows at once, and neither does a stage that works on one micro-batch at a time.
    """
    behind = stages - 1 - stage
    if execution is Execution.SHARDED or behind == 0:
        return 0
    return (behind if execution is Execution.INTERLEAVED else 2 * behind) + 1


@dataclass(frozen=True)
class Held:
    """One tensor that a stage keeps for its backward pass."""

    stage: int
    tensor: Tensor


def held_tensors(program: Program, kept: Kept) -> tuple[Held, ...]:
    """Return what each stage keeps of a micro-batch: stored results, and inputs from the host or other stages."""
    return _held(program.step, kept) if program.training else ()


@remembered
def _held(step: Step, kept: Kept) -> tuple[Held, ...]:
    found: dict[tuple[int, str], Held] = {}
    for stage, root in _read_late(step, kept):
        if (stage, root.name) not in found and _is_held(root, stage, step, kept):
            found[stage, root.name] = Held(stage, root)
    return tuple(found.values())


def _read_late(step: Step, kept: Kept) -> Iterator[tuple[int, Tensor]]:
    """Yield each tensor that backward or recomputed ops read, with the reader's stage."""
    for op in step.ops:
        if op.is_backward or op.name in kept.again:
            for tensor in values_read_by(op, step):
                yield op.stage, step.root(tensor.name)


def _is_held(root: Tensor, stage: int, step: Step, kept: Kept) -> bool:
    maker = step.producer(root.name)
    if maker is None:
        return step.source(root.name) is Source.INPUT
    return not maker.is_backward and (maker.name in kept.stored or maker.stage != stage)


# ------------------------------------------------------------------------------- traffic


@dataclass(frozen=True)
class Traffic:
    """Bytes of one micro-batch by stage: read from the host, written to it, sent forward and sent back.

    `on[k]` goes from stage k to k + 1, `back[k]` from stage k to k - 1. A tensor for a later stage passes through all
    stages in between.
    """

    inputs: tuple[float, ...]
    outputs: tuple[float, ...]
    on: tuple[float, ...]
    back: tuple[float, ...]


@remembered
def traffic_of(step: Step) -> Traffic:
    """Return the bytes that a micro-batch moves; 64-bit elements travel as 32-bit ones."""
    inputs, outputs, on, back = ([0.0] * len(step.stages) for _ in range(4))
    entering = input_stages(step)
    for tensor in step.inputs:
        if tensor.name in entering:
            inputs[entering[tensor.name]] += device_bytes(tensor)
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


def input_stages(step: Step) -> dict[str, int]:
    """Return the stage that first reads each input, by tensor name; inputs that nothing reads are not sent."""
    return {
        tensor.name: min(reader.stage for reader in readers)
        for tensor in step.inputs
        if (readers := step.readers.get(tensor.name))
    }


def device_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor as the device holds it."""
    return tensor.elements * Element.of(tensor.dtype).bytes


def _crossings(step: Step, entering: dict[str, int]) -> Iterator[tuple[Tensor, int, int]]:
    """Yield each tensor that other IPUs read, with its own stage and the farthest of their stages on either side.

    Only IPUs exchange copies (PopART's IpuCopy): what a stage of the same IPU reads stays where it is. So the gradients
    of a weight that the first and the last stage share meet on IPU 0 without any copy, if both stages are there. A
    weight that another IPU uses goes there with every micro-batch, and that IPU's part of the gradient comes back.
    """
    if len(step.stages) == 1:
        return
    sources = {**entering, **_homes(step)}
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


def _homes(step: Step) -> dict[str, int]:
    """Return the stage that first reads each trainable weight, on whose IPU the weight lives, by tensor name."""
    weights = (variable.tensor for variable in step.variables if variable.trainable)
    return {name: readers[0].stage for name in weights if (readers := step.readers.get(name))}
