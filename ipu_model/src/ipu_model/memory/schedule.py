"""In which order each IPU runs the ops of one micro-batch, those that run again, and the weight update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ipu_model.lower import VariableCost
from ipu_model.memory.resident import Fetched
from ipu_model.memory.spread import NOTHING, Spread
from ipu_model.memory.storage import Node, Storages, maker_of
from ipu_model.recompute import Kept
from ipu_model.stages import Stages
from ipu_model.step import Phase

FORWARD: Final = "forward"
RECOMPUTE: Final = "recompute"
BACKWARD: Final = "backward"
UPDATE: Final = "update"

# Results of a convolution's gradient, in the order in which lowering costs their parts.
_PARTS_OF_RESULTS = ("data gradient", "weight gradient", "bias gradient")


@dataclass(frozen=True)
class Step:
    """One op, or part of one, on an IPU: tensors it reads and makes, and what it needs besides."""

    node: str
    phase: str
    stage: int
    reads: tuple[Node, ...]
    makes: tuple[Node, ...]
    temporary: Spread


@dataclass(frozen=True)
class Schedule:
    """The steps of one IPU in order: forward ops, backward ops with those that run again, weight updates."""

    steps: tuple[Step, ...]

    def first(self, *phases: str) -> int:
        """Return the place of the first step in one of `phases`; the number of steps if there is none."""
        return next((i for i, step in enumerate(self.steps) if step.phase in phases), len(self.steps))

    @cached_property
    def backward_start(self) -> int:
        """The place of the first step after the forward pass."""
        return self.first(RECOMPUTE, BACKWARD, UPDATE)

    @cached_property
    def cycle_end(self) -> int:
        """The place of the last step of a micro-batch."""
        return max(0, self.first(UPDATE) - 1)


@dataclass(frozen=True)
class UpdateCosts:
    """What each trainable variable costs: added to its accumulator, and updated."""

    accumulation: Mapping[str, VariableCost]
    update: Mapping[str, VariableCost]


def schedules(
    storages: Storages, stages: Stages, kept: Kept, costs: UpdateCosts, fetched: Fetched
) -> dict[int, Schedule]:
    """Return the steps of every IPU that has any."""
    writer = _Writer(storages, stages, kept, costs, fetched)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        for node in storages.nodes:
            if node.meta.get("phase") is phase:
                writer.run(node)
    writer.update()
    return {ipu: Schedule(tuple(steps)) for ipu, steps in writer.steps.items()}


class _Writer:
    """Writes down the steps of all IPUs."""

    def __init__(self, storages: Storages, stages: Stages, kept: Kept, costs: UpdateCosts, fetched: Fetched) -> None:
        self.steps: dict[int, list[Step]] = {}
        self._storages, self._stages, self._kept = storages, stages, kept
        self._costs, self._fetched = costs, fetched
        self._ran_again: set[Node] = set()
        self._order = {node: place for place, node in enumerate(storages.nodes)}
        self._members = self._ops_by_maker()
        self._gradients: dict[Node, list[str]] = {}
        for variable, gradient in storages.graph.gradients.items():
            self._gradients.setdefault(self._finished_by(gradient), []).append(variable)

    def run(self, node: Node) -> None:
        """Write the steps of an op, after those that it needs to run again."""
        if node.meta["phase"] is Phase.BACKWARD:
            for again in self._to_run_again(node):
                self._write(again, RECOMPUTE)
        self._write(node, BACKWARD if node.meta["phase"] is Phase.BACKWARD else FORWARD)
        for variable in self._gradients.get(node, ()):
            if variable in self._costs.accumulation:
                self._write_variable(variable, self._costs.accumulation[variable], BACKWARD)

    def update(self) -> None:
        """Write the updates of all weights."""
        for variable, cost in self._costs.update.items():
            self._write_variable(variable, cost, UPDATE)

    def _write(self, node: Node, phase: str) -> None:
        storages = self._storages
        reads, makes = storages.read_by(node), storages.made_by(node)
        parts = storages.parts.get(node.name, [])
        if not parts:
            return
        stage = self._stages.of(node.meta["placement"])
        tiles = storages.widest((*reads, *makes))
        steps = self.steps.setdefault(node.meta["placement"].ipu, [])
        fetched = self._fetched.by_reading(reads)
        for index, part in enumerate(parts):
            made = tuple(root for root in makes if _made_in(root, parts[index].part, index))
            needs = storages.room.temporary(part.work.temporary_bytes, tiles)
            steps.append(Step(node.name, phase, stage, tuple(reads), made, _joined(needs, fetched)))

    def _finished_by(self, gradient: str) -> Node:
        """Return the op after which a gradient is complete: its name may stand for a view made later."""
        named = self._storages.by_name[gradient]
        maker = maker_of(self._storages.root(named))
        changing = (node for node in self._members.get(maker, ()) if self._order[node] <= self._order[named])
        return max((n for n in changing if n.name in self._storages.parts), key=self._order.__getitem__, default=named)

    def _write_variable(self, variable: str, cost: VariableCost, phase: str) -> None:
        """Write the step that adds a gradient to its accumulator, or that updates a weight."""
        storages = self._storages
        gradient = storages.by_name[storages.graph.gradients[variable]]
        root = storages.root(gradient)
        placement = gradient.meta.get("placement")
        stage = self._stages.of(placement) if placement is not None else 0
        tiles = storages.widest([root])
        needs = storages.room.temporary(cost.work.temporary_bytes, tiles)
        away = self._fetched.by_update(variable) if phase == UPDATE else self._fetched.by_accumulation(variable)
        steps = self.steps.setdefault(cost.ipu, [])
        reads = (root,) if phase != UPDATE or variable not in self._costs.accumulation else ()
        steps.append(Step(gradient.name, phase, stage, reads, (), _joined(needs, away)))

    # ------------------------------------------------------------------------------- recomputation

    def _ops_by_maker(self) -> dict[Node, list[Node]]:
        """Map each op to those whose results live in what it made, itself included."""
        found: dict[Node, list[Node]] = {}
        for node in self._storages.nodes:
            if node.op == "call_function" and node.meta.get("phase") in (Phase.FORWARD, Phase.BACKWARD):
                found.setdefault(maker_of(self._storages.root(node)), []).append(node)
        return found

    def _to_run_again(self, node: Node) -> list[Node]:
        """Return the forward ops that must run again before a backward op, and have not yet."""
        pending = [node]
        found: list[Node] = []
        while pending:
            for root in self._storages.read_by(pending.pop()):
                maker = maker_of(root)
                if maker.name not in self._kept.again or maker in self._ran_again or not self._same_stage(maker, node):
                    continue
                self._ran_again.add(maker)
                members = [member for member in self._members[maker] if member.meta["phase"] is Phase.FORWARD]
                found += members
                pending += members
        return sorted(found, key=self._order.__getitem__)

    def _same_stage(self, one: Node, other: Node) -> bool:
        return self._stages.of_node(one) == self._stages.of_node(other)


def _made_in(root: Node, part: str, index: int) -> bool:
    """Whether a tensor is made in the part of that name: gradients of a convolution come one by one."""
    maker = maker_of(root)
    if maker is not root and part in _PARTS_OF_RESULTS:
        return bool(root.args[1] == _PARTS_OF_RESULTS.index(part))
    return index == 0


def _joined(temporary: Spread, fetched: Iterable[Spread]) -> Spread:
    """Return temporary data together with tensors that are fetched for a step."""
    extra = list(fetched)
    if not extra:
        return temporary
    tiles = max(temporary.tiles if temporary is not NOTHING else 1, *(each.tiles for each in extra))
    on_tile = temporary.on_tile + sum(each.on_tile for each in extra)
    return Spread(on_tile, tiles, on_tile)
