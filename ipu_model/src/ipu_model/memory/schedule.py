"""In which order each IPU runs the ops of one micro-batch, those that run again, and the weight update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ipu_model.memory.resident import Fetched
from ipu_model.memory.spread import NOTHING, Spread
from ipu_model.memory.storage import Storages
from ipu_model.predict.ops.updates import VariableCost
from ipu_model.recompute import Kept
from ipu_model.step import Op, Phase, Tensor

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
    reads: tuple[str, ...]
    makes: tuple[str, ...]
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


def schedules(storages: Storages, kept: Kept, costs: UpdateCosts, fetched: Fetched) -> dict[int, Schedule]:
    """Return the steps of every IPU that has any."""
    writer = _Writer(storages, kept, costs, fetched)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        for op in storages.step.ops:
            if op.phase is phase:
                writer.run(op)
    writer.update()
    return {ipu: Schedule(tuple(steps)) for ipu, steps in writer.steps.items()}


class _Writer:
    """Writes down the steps of all IPUs."""

    def __init__(self, storages: Storages, kept: Kept, costs: UpdateCosts, fetched: Fetched) -> None:
        self.steps: dict[int, list[Step]] = {}
        self._storages, self._kept = storages, kept
        self._costs, self._fetched = costs, fetched
        self._ran_again: set[str] = set()
        self._order = {op.name: place for place, op in enumerate(storages.step.ops)}
        self._members = self._ops_by_maker()
        self._gradients: dict[str | None, list[str]] = {}
        for variable, gradient in storages.step.gradients.items():
            self._gradients.setdefault(self._finished_by(gradient), []).append(variable)

    def run(self, op: Op) -> None:
        """Write the steps of an op, after those that it needs to run again."""
        if op.is_backward:
            for again in self._to_run_again(op):
                self._write(again, RECOMPUTE)
        self._write(op, BACKWARD if op.is_backward else FORWARD)
        for variable in self._gradients.get(op.name, ()):
            if variable in self._costs.accumulation:
                self._write_variable(variable, self._costs.accumulation[variable], BACKWARD)

    def update(self) -> None:
        """Write the updates of all weights."""
        for variable, cost in self._costs.update.items():
            self._write_variable(variable, cost, UPDATE)

    def _write(self, op: Op, phase: str) -> None:
        storages = self._storages
        reads, makes = storages.read_by(op), storages.made_by(op)
        parts = storages.parts.get(op.name, [])
        if not parts:
            return
        tiles = storages.widest((*reads, *makes))
        steps = self.steps.setdefault(op.ipu, [])
        fetched = self._fetched.by_reading(reads)
        for index, part in enumerate(parts):
            made = tuple(root for root in makes if _made_in(storages.step.tensors[root], part.part, index))
            needs = storages.room.temporary(part.work.temporary_bytes, tiles)
            steps.append(Step(op.name, phase, op.stage, tuple(reads), made, _joined(needs, fetched)))

    def _finished_by(self, gradient: str) -> str | None:
        """Return the op after which a gradient is complete: its name may stand for a view made later."""
        named, maker = self._storages.step.producer(gradient), self._storages.maker(self._storages.root(gradient))
        if named is None:
            return None
        changing = self._members.get(maker.name, ()) if maker is not None else ()
        last = self._order[named.name]
        complete = (o.name for o in changing if self._order[o.name] <= last and o.name in self._storages.parts)
        return max(complete, key=self._order.__getitem__, default=named.name)

    def _write_variable(self, variable: str, cost: VariableCost, phase: str) -> None:
        """Write the step that adds a gradient to its accumulator, or that updates a weight."""
        storages = self._storages
        gradient = storages.step.gradients[variable]
        root, made_by = storages.root(gradient), storages.step.producer(gradient)
        stage = 0 if made_by is None else made_by.stage
        tiles = storages.widest([root])
        needs = storages.room.temporary(cost.work.temporary_bytes, tiles)
        away = self._fetched.by_update(variable) if phase == UPDATE else self._fetched.by_accumulation(variable)
        steps = self.steps.setdefault(cost.ipu, [])
        reads = (root,) if phase != UPDATE or variable not in self._costs.accumulation else ()
        steps.append(Step(gradient, phase, stage, reads, (), _joined(needs, away)))

    # ------------------------------------------------------------------------------- recomputation

    def _ops_by_maker(self) -> dict[str, list[Op]]:
        """Map each op to those whose results live in what it made, itself included."""
        storages = self._storages
        found: dict[str, list[Op]] = {}
        for op in storages.step.ops:
            made = storages.step.results_of(op)
            maker = storages.maker(storages.root(made[0].name)) if made else op
            if maker is not None:
                found.setdefault(maker.name, []).append(op)
        return found

    def _to_run_again(self, op: Op) -> list[Op]:
        """Return the forward ops that must run again before a backward op, and have not yet."""
        pending = [op]
        found: list[Op] = []
        while pending:
            for root in self._storages.read_by(pending.pop()):
                maker = self._storages.maker(root)
                if maker is None or maker.name not in self._kept.again or maker.stage != op.stage:
                    continue
                if maker.name in self._ran_again:
                    continue
                self._ran_again.add(maker.name)
                members = [member for member in self._members[maker.name] if not member.is_backward]
                found += members
                pending += members
        return sorted(found, key=lambda each: self._order[each.name])


def _made_in(tensor: Tensor, part: str, index: int) -> bool:
    """Whether a tensor is made in the part of that name: gradients of a convolution come one by one."""
    if tensor.name != tensor.producer and part in _PARTS_OF_RESULTS:
        return tensor.index == _PARTS_OF_RESULTS.index(part)
    return index == 0


def _joined(temporary: Spread, fetched: Iterable[Spread]) -> Spread:
    """Return temporary data together with tensors that are fetched for a step."""
    extra = list(fetched)
    if not extra:
        return temporary
    tiles = max(temporary.tiles if temporary is not NOTHING else 1, *(each.tiles for each in extra))
    on_tile = temporary.on_tile + sum(each.on_tile for each in extra)
    return Spread(on_tile, tiles, on_tile)
