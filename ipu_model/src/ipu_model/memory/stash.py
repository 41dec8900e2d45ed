"""What a pipeline keeps of several micro-batches at once: how deep each stash is, and what crosses IPUs."""

from __future__ import annotations

from ipu_model.memory.storage import Storages
from ipu_model.program import Execution, Program


def stash_slots(execution: Execution, stages: int, stage: int) -> int:
    """Return how many micro-batches a stage keeps from its forward to its backward pass at once.

    Of K stages, stage s has 2 (K - 1 - s) + 1 slots: that many micro-batches enter it between the forward and
    the backward pass of one (PopART, transforms/pipeline.cpp). Interleaved schedules alternate both passes and
    have K - 1 - s + 1 ("Memory and Performance Optimisation on the IPU", 4.2). The last stage goes straight
    on to its backward pass and has none; nor has any stage that works on one micro-batch at a time.
    """
    behind = stages - 1 - stage
    if execution is Execution.SHARDED or behind == 0:
        return 0
    return (behind if execution is Execution.INTERLEAVED else 2 * behind) + 1


class Stash:
    """The rules of stashing for one program."""

    def __init__(self, program: Program, storages: Storages) -> None:
        self._program, self._stages = program, len(program.step.stages)
        self._storages = storages
        self.pipelined = program.execution is not Execution.SHARDED and self._stages > 1
        names = set(program.step.outputs)
        self.returned = [
            name for name in storages.step.tensors if name in names and storages.ipu(storages.root(name)) is not None
        ]
        self._leaving = _leaving(storages) if len(program.step.ipus) > 1 else {}

    def slots(self, stage: int) -> int:
        """Return how many slots the stash of a stage has."""
        if not self._program.training:
            return 0
        return stash_slots(self._program.execution, self._stages, stage)

    def leaves(self, root: str, ipu: int) -> bool:
        """Whether a tensor made on `ipu` is read on another one."""
        return bool(self._leaving.get(root, set()) - {ipu})

    def transfers(self, ipu: int) -> int:
        """Return how many tensors go to or come from other IPUs."""
        return sum(ipu in readers or self._storages.ipu(root) == ipu for root, readers in self._leaving.items())

    def is_off_chip(self, root: str) -> bool:
        """Whether stashes of a tensor are kept in streaming memory."""
        return self._program.locations.activations.is_off_chip(self._storages.step.tensors[root].elements)


def _leaving(storages: Storages) -> dict[str, set[int]]:
    """Map each tensor that other IPUs read than the one that made it to those IPUs."""
    found: dict[str, set[int]] = {}
    for op in storages.step.ops:
        if op.name not in storages.parts:
            continue
        for root in storages.read_by(op):
            if storages.ipu(root) not in (None, op.ipu):
                found.setdefault(root, set()).add(op.ipu)
    return found
