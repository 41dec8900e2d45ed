"""The order of execution and the tensors kept meanwhile, decided once for both memory and time.

This module decides which forward results are kept for the backward pass and which ops run again instead, how many
micro-batches each stage stashes and what it holds of each, what goes from stage to stage, and in which cycles the
passes of stages run (`ipu_model.predict.passes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ipu_model.predict.device import Element
from ipu_model.predict.passes import Round, rounds_of, shape_of
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.predict.remembered import remembered
from ipu_model.step import Op, Phase, Source, Step, Tensor

_NORMS = ("native_batch_norm", "native_layer_norm", "native_group_norm", "_native_batch_norm", "cudnn_batch_norm")
_NON_LINEARITIES = ("relu", "gelu", "silu", "sigmoid", "tanh", "hardswish", "hardtanh", "leaky_relu", "elu", "clamp")
_CONTRACTIONS = ("convolution", "mm", "addmm", "bmm", "baddbmm")


@dataclass(frozen=True)
class Order:
    """The order of one call of a program.

    `slots` is the number of micro-batches that each stage stashes between forward and backward pass, 0 for stages
    without a stash. `micro_batches` is the number that one replica runs in a call, in the cycles of `rounds`.
    """

    kept: Kept
    held: tuple[Held, ...]
    slots: tuple[int, ...]
    traffic: Traffic
    rounds: tuple[Round, ...]
    micro_batches: int
    is_pipelined: bool

    def executions(self, op: str) -> int:
        """Return how often an op runs in a call: once for a micro-batch, twice where it is recomputed."""
        return self.micro_batches * (2 if op in self.kept.again else 1)


def order_of(program: Program) -> Order:
    """Return the order in which a program runs its passes, and what it keeps between them."""
    step, kept = program.step, kept_for_backward(program)
    stages = len(step.stages)
    return Order(
        kept=kept,
        held=held_tensors(program, kept),
        slots=tuple(stash_slots(program.execution, stages, s) if program.training else 0 for s in range(stages)),
        traffic=traffic_of(step),
        rounds=rounds_of(shape_of(program)),
        micro_batches=program.batching.steps,
        is_pipelined=program.execution is not Execution.SHARDED and stages > 1,
    )


# ------------------------------------------------------------------------------- recomputation


@dataclass(frozen=True)
class Kept:
    """The forward ops whose results are stored for the backward pass, and those that run again, by name.

    For ops in `stored`, the forward pass keeps the results that the backward pass or recomputed ops read. Ops in
    `again` run a second time, in their order, before the backward ops that need them. Views and in-place ops belong to
    the op that made the storage.
    """

    stored: frozenset[str]
    again: frozenset[str]


def kept_for_backward(program: Program) -> Kept:
    """Return what is stored and what is recomputed; values that enter a stage from outside are always stored."""
    if not program.training:
        return Kept(frozenset(), frozenset())
    return _kept(program.step, program.recomputation)


@remembered
def _kept(step: Step, mode: Recomputation) -> Kept:
    wanted = _wanted_by_backward(step)
    recomputing = _recomputing_stages(step, mode)
    checkpoints = _checkpoints(step, mode, wanted)
    stored: set[str] = set()
    again: set[str] = set()
    pending = list(wanted)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        op = step.by_name[name]
        if op.stage not in recomputing or name in checkpoints:
            stored.add(name)
            continue
        again.add(name)
        pending += _made_from(op, step)
    # In-place ops and views repeat with the op whose storage they lie in.
    return Kept(frozenset(stored), frozenset(again | {op.name for op in _forward(step) if _maker(op, step) in again}))


def _forward(step: Step) -> list[Op]:
    return [op for op in step.ops if op.phase is Phase.FORWARD]


def _maker(op: Op, step: Step) -> str:
    """Return the name of the op that made the storage of `op`'s results, or of the tensor that enters the step."""
    for result in step.results_of(op):
        maker = step.maker(result.name)
        return result.storage if maker is None else maker.name
    return op.name


def _wanted_by_backward(step: Step) -> dict[str, None]:
    """Return the ops of the forward pass whose results a backward op of the same stage reads."""
    wanted: dict[str, None] = {}
    for op in step.ops:
        if not op.is_backward:
            continue
        for tensor in step.read_by(op):
            maker = step.maker(tensor.name)
            if maker is not None and not maker.is_backward and maker.stage == op.stage:
                wanted[maker.name] = None
    return wanted


def _recomputing_stages(step: Step, mode: Recomputation) -> frozenset[int]:
    """Return the stages that recompute; a pipeline's last stage does not: its backward pass follows at once."""
    if mode is Recomputation.NONE:
        return frozenset()
    every = frozenset(stage.index for stage in step.stages)
    return every - {step.last_stage} if mode is Recomputation.PIPELINE else every


def _checkpoints(step: Step, mode: Recomputation, wanted: dict[str, None]) -> set[str]:
    """Return the ops whose results are stored although their stage recomputes."""
    chosen = {_maker(op, step) for op in step.ops if op.hints.recomputation_checkpoint}
    if mode is Recomputation.NORM_ONLY:
        ops = (step.by_name[name] for name in wanted)
        return chosen | {op.name for op in ops if not _is(op, _NORMS) and not _follows_norm(op, step)}
    if mode is Recomputation.STANDARD and not chosen:
        # PopART chooses by liveness. Of the n places where the fewest tensors are live, taking every sqrt(n)-th
        # balances memory against recomputation.
        narrow = _narrow_places(step)
        return set(narrow[:: max(1, math.isqrt(len(narrow)))])
    return chosen


def _narrow_places(step: Step) -> list[str]:
    """Return the forward ops after which no other forward result is still needed by the forward pass.

    If there is no such place (every result is used to the end), return all contractions.
    """
    forward = _forward(step)
    ops = {op.name for op in forward}
    last_use: dict[str, float] = {}
    for position, op in enumerate(forward):
        for tensor in step.read_by(op):
            source = step.maker(tensor.name)
            if source is not None and source.name in ops:
                last_use[source.name] = position
        if any(result.name != op.name for result in step.results_of(op)) and (maker := _maker(op, step)) in ops:
            last_use[maker] = position + 0.5  # picking one of several results counts as using them
    alive: set[str] = set()
    found: dict[str, None] = {}
    for position, op in enumerate(forward):
        alive = {each for each in alive if last_use[each] > position}
        maker = _maker(op, step)
        if last_use.get(maker, -1) > position:
            alive.add(maker)
        if len(alive) == 1:
            found.setdefault(next(iter(alive)))
    return list(found) or [op.name for op in forward if _is(op, _CONTRACTIONS)]


def _follows_norm(op: Op, step: Step) -> bool:
    makers = (step.maker(tensor.name) for tensor in step.read_by(op))
    return _is(op, _NON_LINEARITIES) and any(maker is not None and _is(maker, _NORMS) for maker in makers)


def _made_from(op: Op, step: Step) -> list[str]:
    """Return the ops of the same stage that made the inputs of `op`."""
    found = []
    for tensor in step.read_by(op):
        maker = step.maker(tensor.name)
        here = (each for each in (maker, step.producer(tensor.name)) if each is not None)
        if maker is not None and any(not each.is_backward and each.stage == op.stage for each in here):
            found.append(maker.name)
    return found


def _is(op: Op, kinds: tuple[str, ...]) -> bool:
    """Whether an op is of one of these kinds; an in-place op never is, since its result belongs to another op."""
    return op.kind in kinds and not op.is_in_place


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
            for tensor in step.read_by(op):
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
    """Yield each tensor that other stages read, with its own stage and the farthest reader on either side."""
    if len(step.stages) == 1:
        return
    for tensor in step.tensors.values():
        maker = step.producer(tensor.name)
        own = entering.get(tensor.name) if maker is None else maker.stage
        if own is None:
            continue
        reading = {reader.stage for reader in step.readers.get(tensor.name, ())}
        if reading and max(reading) > own:
            yield tensor, own, max(reading)
        if reading and min(reading) < own:
            yield tensor, own, min(reading)
