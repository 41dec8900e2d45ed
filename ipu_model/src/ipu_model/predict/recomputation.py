"""Recomputation: which forward results are kept for the backward pass, which ops run again, and when they do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ipu_model.predict.ops.contractions import CONTRACTIONS
from ipu_model.predict.ops.normalisation import NORMS
from ipu_model.predict.ops.pointwise import dropout_masks
from ipu_model.predict.program import Execution, Program, Recomputation, remembered
from ipu_model.step import Op, Step, Tensor, ipus_in_use

_NON_LINEARITIES = ("relu", "gelu", "silu", "sigmoid", "tanh", "hardswish", "hardtanh", "leaky_relu", "elu", "clamp")
# Ops that take only the shape of their operand.
_SHAPE_ONLY = (
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("new_empty", "new_zeros", "new_ones", "new_full"),
)


def default_recomputation(execution: Execution, ipus: int, *, training: bool) -> Recomputation:
    """Return what PopTorch recomputes by default: everything but checkpoints, in pipelines of several `ipus`."""
    pipelined = training and execution is not Execution.SHARDED and ipus > 1
    return Recomputation.PIPELINE if pipelined else Recomputation.NONE


def recomputation_over(program: Program, execution: Execution, ipus: int) -> Recomputation:
    """Return what a program recomputes once it runs so, on so many IPUs: the default if that is what it has now."""
    now = default_recomputation(program.execution, len(ipus_in_use(program.step)), training=program.training)
    if program.recomputation is not now:
        return program.recomputation
    return default_recomputation(execution, ipus, training=program.training)


@dataclass(frozen=True)
class Recomputed:
    """The forward ops that are stored, and those that run `again`; views go with their storage, masks are redrawn."""

    stored: frozenset[str]
    again: frozenset[str]


def kept_for_backward(program: Program) -> Recomputed:
    """Return what is stored and what is recomputed; values that enter a stage from outside are always stored."""
    if not program.training:
        return Recomputed(frozenset(), frozenset())
    return _kept(program.step, program.recomputation)


@remembered
def _kept(step: Step, mode: Recomputation) -> Recomputed:
    # The forward ops whose results a backward op of the same stage reads.
    wanted: dict[str, None] = {}
    for op in step.ops:
        for tensor in values_read_by(op, step) if op.is_backward else ():
            maker = step.maker(tensor.name)
            if maker is not None and not maker.is_backward and maker.stage == op.stage:
                wanted[maker.name] = None
    recomputing = _recomputing_stages(step, mode)
    checkpoints = _checkpoints(step, mode, wanted)
    makers = (step.maker(mask.name) for mask in dropout_masks(step))
    # An op that makes a mask and nothing else: running it again is all that the mask needs.
    masks = {maker.name for maker in makers if maker is not None and len(maker.results) == 1}
    again, seen = set[str](), set[str]()
    pending = list(wanted)
    while pending:
        op = step.by_name[pending.pop()]
        # The gradient of a dropout draws the mask without an op of its own.
        if op.name not in seen and (op.stage in recomputing or op.name not in masks):
            seen.add(op.name)
            if op.name in masks or (op.stage in recomputing and op.name not in checkpoints):
                again.add(op.name)
                pending += _made_from(op, step)
    # In-place ops and views repeat with the op whose storage they lie in.
    repeated = {op.name for op in step.forward if _maker(op, step) in again}
    return Recomputed(frozenset(seen - again), frozenset(again | repeated))


def _maker(op: Op, step: Step) -> str:
    """Return the name of the op that made the storage of `op`'s results, or of the tensor that enters the step."""
    for result in step.results_of(op):
        maker = step.maker(result.name)
        return result.storage if maker is None else maker.name
    return op.name


def _recomputing_stages(step: Step, mode: Recomputation) -> frozenset[int]:
    """Return the stages that recompute: of a pipeline's last one, only what lies between checkpoints marked in it.

    Its backward pass follows its forward pass at once, so that recomputing the whole stage would save nothing; in the
    published day-03 trace IPU 0 waits no longer for further micro-batches, as it would if IPU 1 repeated its forward
    pass.
    """
    if mode is Recomputation.NONE:
        return frozenset()
    every = frozenset(stage.index for stage in step.stages)
    marked = any(op.hints.recomputation_checkpoint and op.stage == step.last_stage for op in step.ops)
    return every - {step.last_stage} if mode is Recomputation.PIPELINE and not marked else every


def _checkpoints(step: Step, mode: Recomputation, wanted: dict[str, None]) -> set[str]:
    chosen = {_maker(op, step) for op in step.ops if op.hints.recomputation_checkpoint}
    if mode is Recomputation.NORM_ONLY:
        for op in (step.by_name[name] for name in wanted):
            makers = [step.maker(tensor.name) for tensor in step.read_by(op)]
            follows_norm = any(maker is not None and _is(maker, NORMS) for maker in makers)
            if not _is(op, NORMS) and not (_is(op, _NON_LINEARITIES) and follows_norm):
                chosen.add(op.name)
        return chosen
    if mode is Recomputation.STANDARD and not chosen:
        # PopART chooses by liveness. Of the n places where the fewest tensors are live, taking every sqrt(n)-th
        # balances memory against recomputation.
        narrow = _narrow_places(step)
        return set(narrow[:: max(1, math.isqrt(len(narrow)))])
    return chosen


def _narrow_places(step: Step) -> list[str]:
    """Return the forward ops after which no other result is still needed, or all contractions if there are none."""
    forward = step.forward
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
    narrow: dict[str, None] = {}
    for position, op in enumerate(forward):
        alive = {name for name in alive if last_use[name] > position}
        maker = _maker(op, step)
        if last_use.get(maker, -1) > position:
            alive.add(maker)
        if len(alive) == 1:
            narrow.setdefault(next(iter(alive)))
    return list(narrow) or [op.name for op in forward if _is(op, CONTRACTIONS)]


def _made_from(op: Op, step: Step) -> list[str]:
    makers = []
    for tensor in values_read_by(op, step):
        maker, producer = step.maker(tensor.name), step.producer(tensor.name)
        known = (source for source in (maker, producer) if source is not None)
        if maker is not None and any(not source.is_backward and source.stage == op.stage for source in known):
            makers.append(maker.name)
    return makers


def values_read_by(op: Op, step: Step) -> tuple[Tensor, ...]:
    """Return the tensors whose values an op uses; ops that take only a shape use none."""
    return () if op.kind in _SHAPE_ONLY else step.read_by(op)


def _is(op: Op, kinds: tuple[str, ...]) -> bool:
    """Whether an op is of one of these kinds; an in-place op never is, since its result belongs to another op."""
    return op.kind in kinds and not op.is_in_place


class Pass(str, Enum):
    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"


@dataclass(frozen=True)
class OpRun:
    op: str
    stage: int
    during: Pass


@remembered
def sequence_of(step: Step, kept: Recomputed) -> tuple[OpRun, ...]:
    """Return every execution of an op for one micro-batch, in the order in which its stage runs them."""
    members: dict[str, list[Op]] = {}
    for op in step.forward:
        members.setdefault(_maker(op, step), []).append(op)
    place = {op.name: number for number, op in enumerate(step.ops)}
    ran_again: set[str] = set()
    runs = [OpRun(op.name, op.stage, Pass.FORWARD) for op in step.forward]
    for op in step.ops:
        if not op.is_backward:
            continue
        pending, needed = [op], list[Op]()  # the forward ops that must run again first
        while pending:
            for tensor in values_read_by(pending.pop(), step):
                maker = step.maker(tensor.name)
                if maker is None or maker.name not in kept.again or maker.stage != op.stage or maker.name in ran_again:
                    continue
                ran_again.add(maker.name)
                needed += members[maker.name]
                pending += members[maker.name]
        needed.sort(key=lambda forward: place[forward.name])
        runs += [OpRun(forward.name, forward.stage, Pass.RECOMPUTE) for forward in needed]
        runs.append(OpRun(op.name, op.stage, Pass.BACKWARD))
    return tuple(runs)
