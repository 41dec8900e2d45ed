"""Which forward results are kept for the backward pass, and which ops run again instead."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipu_model.program import Program, Recomputation
from ipu_model.step import Op, Phase, Step

_NORMS = ("native_batch_norm", "native_layer_norm", "native_group_norm", "_native_batch_norm", "cudnn_batch_norm")
_NON_LINEARITIES = ("relu", "gelu", "silu", "sigmoid", "tanh", "hardswish", "hardtanh", "leaky_relu", "elu", "clamp")
_CONTRACTIONS = ("convolution", "mm", "addmm", "bmm", "baddbmm")


@dataclass(frozen=True)
class Kept:
    """Names of the forward ops by what happens between forward and backward pass.

    Of the ops in `stored`, results that the backward pass reads (or that ops run again read) are kept from the
    forward pass; those in `again` run a second time, in their order, before the backward ops that need them.
    Views and in-place ops belong to the op that made the storage.
    """

    stored: frozenset[str]
    again: frozenset[str]


def kept_for_backward(program: Program) -> Kept:
    """Return what is stored and what is computed again; values that enter a stage from outside are always stored."""
    if not program.training:
        return Kept(frozenset(), frozenset())
    step = program.step
    wanted = _wanted_by_backward(step)
    recomputing = _recomputing_stages(program)
    checkpoints = _checkpoints(program, wanted)
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
    """Return the name of what made the storage that the results of `op` lie in: an op, or what enters the step."""
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


def _recomputing_stages(program: Program) -> frozenset[int]:
    """Return the stages in which something runs again; the last one of a pipeline goes on from its forward pass."""
    if program.recomputation is Recomputation.NONE:
        return frozenset()
    every = frozenset(stage.index for stage in program.step.stages)
    return every - {program.step.last_stage} if program.recomputation is Recomputation.PIPELINE else every


def _checkpoints(program: Program, wanted: dict[str, None]) -> set[str]:
    """Return the ops whose results are stored although their stage recomputes."""
    step, mode = program.step, program.recomputation
    chosen = {_maker(op, step) for op in step.ops if op.hints.recomputation_checkpoint}
    if mode is Recomputation.NORM_ONLY:
        ops = (step.by_name[name] for name in wanted)
        return chosen | {op.name for op in ops if not _is(op, _NORMS) and not _follows_norm(op, step)}
    if mode is Recomputation.STANDARD and not chosen:
        # PopART chooses by liveness. Of the n places where least is alive, every square root of n-th has the same
        # order of memory and of repeated work.
        narrow = _narrow_places(step)
        return set(narrow[:: max(1, math.isqrt(len(narrow)))])
    return chosen


def _narrow_places(step: Step) -> list[str]:
    """Return the forward ops after which no other forward result is still needed by the forward pass.

    Where there is no such place (every result is used to the end), all contractions.
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
            last_use[maker] = position + 0.5  # to pick one of several results is a use of them
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
    """Return the ops that made what `op` is computed from, as far as it was computed in the same stage."""
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
