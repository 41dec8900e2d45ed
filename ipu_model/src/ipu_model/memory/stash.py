"""What a pipeline keeps of several micro-batches at once: how deep each stash is, and what crosses IPUs."""

from __future__ import annotations

from collections.abc import Sequence

from ipu_model.graph import TensorSpec
from ipu_model.memory.storage import Node, Storages
from ipu_model.program import Execution, Program
from ipu_model.stages import Stages


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

    def __init__(self, program: Program, stages: Stages, storages: Storages) -> None:
        self._program, self._stages = program, stages
        self.pipelined = program.execution is not Execution.SHARDED and len(stages) > 1
        names = {output.node for output in program.graph.outputs if output.node is not None}
        self.returned: Sequence[Node] = [
            node for node in storages.nodes if node.name in names and "placement" in storages.root(node).meta
        ]
        self._leaving = _leaving(storages) if len(program.graph.ipus) > 1 else {}

    def slots(self, stage: int) -> int:
        """Return how many slots the stash of a stage has."""
        if not self._program.training:
            return 0
        return stash_slots(self._program.execution, len(self._stages), stage)

    def stage_of(self, node: Node) -> int | None:
        """Return the stage of an op."""
        return self._stages.of_node(node)

    def leaves(self, root: Node, ipu: int) -> bool:
        """Whether a tensor made on `ipu` is read on another one."""
        return bool(self._leaving.get(root, set()) - {ipu})

    def transfers(self, ipu: int) -> int:
        """Return how many tensors go to or come from other IPUs."""
        return sum(ipu in readers or _home(root) == ipu for root, readers in self._leaving.items())

    def is_off_chip(self, root: Node) -> bool:
        """Whether stashes of a tensor are kept in streaming memory."""
        spec = root.meta.get("spec")
        return isinstance(spec, TensorSpec) and self._program.locations.activations.is_off_chip(spec.elements)


def _leaving(storages: Storages) -> dict[Node, set[int]]:
    """Map each tensor that other IPUs read than the one that made it to those IPUs."""
    found: dict[Node, set[int]] = {}
    for node in storages.nodes:
        if node.name not in storages.parts:
            continue
        ipu = node.meta["placement"].ipu
        for root in storages.read_by(node):
            home = _home(root)
            if home is not None and home != ipu:
                found.setdefault(root, set()).add(ipu)
    return found


def _home(root: Node) -> int | None:
    """Return the IPU that made a tensor; `None` for variables, inputs and constants."""
    placement = root.meta.get("placement")
    return None if placement is None or root.op != "call_function" else int(placement.ipu)
