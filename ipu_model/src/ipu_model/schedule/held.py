"""Tensors that wait between the forward and the backward pass of a stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ipu_model.program import Execution, Program
from ipu_model.recompute import Kept
from ipu_model.step import Source, Step, Tensor


@dataclass(frozen=True)
class Held:
    """One tensor that a stage keeps for its backward pass."""

    stage: int
    tensor: Tensor


def held_tensors(program: Program, kept: Kept) -> tuple[Held, ...]:
    """Return what each stage keeps of a micro-batch: stored results, and what came from the host or other stages."""
    if not program.training:
        return ()
    found: dict[tuple[int, str], Held] = {}
    for stage, root in _read_late(program.step, kept):
        if (stage, root.name) not in found and _is_held(root, stage, program.step, kept):
            found[stage, root.name] = Held(stage, root)
    return tuple(found.values())


def is_stashed(program: Program, stage: int) -> bool:
    """Whether a stage keeps several micro-batches, so that what it holds is copied to and from a stash.

    In a pipeline all but the last stage do, which goes straight on to its backward pass (PopART,
    transforms/pipeline.cpp).
    """
    return program.training and program.execution is not Execution.SHARDED and stage != program.step.last_stage


def _read_late(step: Step, kept: Kept) -> Iterator[tuple[int, Tensor]]:
    """Yield what ops of the backward pass and ops that run again read, each with the reader's stage."""
    for op in step.ops:
        if op.is_backward or op.name in kept.again:
            for tensor in step.read_by(op):
                yield op.stage, step.root(tensor.name)


def _is_held(root: Tensor, stage: int, step: Step, kept: Kept) -> bool:
    maker = step.producer(root.name)
    if maker is None:
        return step.source(root.name) is Source.INPUT
    return not maker.is_backward and (maker.name in kept.stored or maker.stage != stage)
