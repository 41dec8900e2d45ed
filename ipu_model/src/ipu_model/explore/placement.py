"""Which modules go on which IPU: what every stretch of a model would take and hold as a stage of its own.

The cycles and bytes of modules add up to an estimate, which costs next to nothing; each program that is modelled
corrects it. So a search finds the best cuts and shares of memory for temporary data in a few programs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipu_model.explore.blocks import (
    Unit,
    has_checkpoints,
    repeated_blocks,
    scopes_of_variables,
    split_before,
    units_of,
    work_of_scopes,
)
from ipu_model.explore.options import with_options
from ipu_model.predict.ops.updates import UPDATE_PART, variable_costs
from ipu_model.predict.order import device_bytes, held_tensors, stash_slots
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.predict.recomputation import kept_for_backward, recomputation_over
from ipu_model.predict.work import Mover, variables_of
from ipu_model.step import Step

SHARES = (None, 0.4, 0.25, 0.2, 0.17, 0.14, 0.12, 0.1)
"""The available memory proportions of an IPU that a search tries; `None` is the program's own."""
_HALVINGS = 20
Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """What one IPU gets: the units from `start` to before `end`, and a share of memory by its place in `SHARES`."""

    start: int
    end: int
    share: int


@dataclass(frozen=True)
class Plan:
    """The parts of all IPUs, with estimates: cycles of the slowest for a micro-batch, bytes of the fullest tile."""

    parts: tuple[Part, ...]
    cycles: float
    bytes: float


class Stages:
    """The stages that a program, which is given on one IPU, could have on several.

    With `returns`, what follows the repeated blocks is one more stage, on the first IPU: where a tied weight is.
    `costed` is a step with the same costs, which other stages share.
    """

    def __init__(
        self,
        program: Program,
        ipus: int,
        *,
        returns: bool = False,
        shares: Sequence[float | None] = SHARES,
        costed: Step | None = None,
    ) -> None:
        self.program, self.ipus, self.returns, self.shares = program, ipus, returns, tuple(shares)
        costed = costed or program.step
        units = self.units = units_of(costed, program.settings)
        self.count = ipus + returns
        self.end = _first_after_blocks(program, units) if returns else len(units)
        self.is_possible = ipus <= self.end and self.end + returns <= len(units)
        self._slots = [max(1, stash_slots(program.execution, self.count, stage)) for stage in range(self.count)]
        mode = program.recomputation
        in_pipeline = mode is Recomputation.PIPELINE
        marked = has_checkpoints(program.step)
        chosen = ({} if share is None else {"available_memory_proportion": share} for share in shares)
        work = [work_of_scopes(costed, with_options(program, **share).settings) for share in chosen]
        forward = np.array([_by_unit(each.forward, units) for each in work])
        backward = np.array([_by_unit(each.backward, units) for each in work])
        backward += _by_unit(cycles_of_weights(program, ipus), units)
        self._cycles = forward * (2 - (mode is Recomputation.NONE)) + backward
        # The last stage of a pipeline recomputes only between checkpoints.
        self._cycles_of_last = forward + backward if in_pipeline and not marked else self._cycles
        self._temporary = np.array([_by_unit(each.temporary, units, max) for each in work])
        mode = Recomputation.ALL if in_pipeline else mode  # which on one IPU keeps nothing but checkpoints
        held, self._stashed, live = (
            _by_unit(found, units) / program.settings.device.chip.tiles
            for found in (held_by_scope(program), kept_by_scope(program, mode), kept_by_scope(program))
        )
        self._held = held + live * (mode is Recomputation.ALL and not marked)
        self.wrong = np.zeros((2, ipus, len(self.shares)))
        """What has to be added to the estimated cycles and bytes of an IPU with a share."""
        self.corrected = np.zeros((ipus, len(self.shares)), dtype=bool)
        self._known: dict[tuple[int, int], tuple[Numbers, Numbers]] = {}

    def names(self, plan: Plan) -> tuple[str, ...]:
        """Return the modules at which the stages of a plan after the first begin."""
        starts = [part.start for part in plan.parts[1:]] + [self.end] * self.returns
        return tuple(self.units[start].name for start in starts)

    def fastest(self, most_bytes: float) -> Plan | None:
        """Return the plan whose slowest IPU is fastest, and of these the emptiest; `None` if all need more memory."""
        if self._parts(math.inf, most_bytes) is None:
            return None
        cycles = _least(lambda most: self._parts(most, most_bytes) is not None, self._most(0))
        least = _least(lambda most: self._parts(cycles, most) is not None, min(most_bytes, self._most(1)))
        parts = self._parts(cycles, least) or ()
        return self.estimated(self._with_fastest_share(ipu, part, most_bytes) for ipu, part in enumerate(parts))

    def leanest(self) -> Plan:
        """Return the plan whose fullest tile is emptiest."""
        least = _least(lambda most: self._parts(math.inf, most) is not None, self._most(1))
        return self.estimated(self._parts(math.inf, least) or ())

    def correct(self, plan: Plan, cycles: Sequence[float], held: Sequence[float]) -> None:
        """Learn what the IPUs of a plan take and hold; with unknown shares, they are as wrong as with its own."""
        for ipu, part in enumerate(plan.parts):
            guessed = np.array([values[:, part.end - part.start - 1] for values in self._loads(ipu, part.start)])
            is_same = (guessed == guessed[:, part.share, None]).all(axis=0)
            error = np.array([cycles[ipu], held[ipu]]) - guessed[:, part.share]
            self.wrong[:, ipu, is_same | ~self.corrected[ipu]] = error[:, None]
            self.corrected[ipu] |= is_same

    def estimated(self, parts: Iterable[Part]) -> Plan:
        parts = tuple(parts)
        cycles, held = np.array([self._of(ipu, part) for ipu, part in enumerate(parts)]).T
        at_once = self.program.execution is not Execution.SHARDED
        return Plan(parts, float(cycles.max() if at_once else cycles.sum()), float(held.max()))

    def _of(self, ipu: int, part: Part) -> Numbers:
        found = np.array([values[part.share, part.end - part.start - 1] for values in self._loads(ipu, part.start)])
        return found + self.wrong[:, ipu, part.share]

    def _with_fastest_share(self, ipu: int, part: Part, most_bytes: float) -> Part:
        others = [part, *(replace(part, share=share) for share in range(len(self.shares)))]
        fitting = [other for other in others if self._of(ipu, other)[1] <= most_bytes]
        return min(fitting or [part], key=lambda other: (round(float(self._of(ipu, other)[0])), other.share))

    def _parts(self, most_cycles: float, most_bytes: float) -> list[Part] | None:
        """Return parts that each IPU can take and hold; every one reaches as far as it can, so that others need not."""
        parts, start = list[Part](), 0
        for ipu in range(self.ipus):
            left = self.end - start - (self.ipus - 1 - ipu)
            cycles, held = self._loads(ipu, start)
            wrong = self.wrong[:, ipu, :, None]
            fits = (cycles[:, :left] + wrong[0] <= most_cycles) & (held[:, :left] + wrong[1] <= most_bytes)
            reached = fits.sum(axis=1)
            share = int(reached.argmax())
            if not reached[share]:
                return None
            parts.append(Part(start, start + int(reached[share]), share))
            start = parts[-1].end
        return parts if start == self.end else None

    def _loads(self, ipu: int, start: int) -> tuple[Numbers, Numbers]:
        """Return estimated cycles and bytes of an IPU that begins at a unit, by share and number of units."""
        if (ipu, start) not in self._known:
            per_unit = self._cycles_of_last if ipu == self.count - 1 else self._cycles
            cycles = per_unit[:, start : self.end].cumsum(axis=1)
            held = (self._held + self._slots[ipu] * self._stashed)[start : self.end].cumsum()
            temporary = np.maximum.accumulate(self._temporary[:, start : self.end], axis=1)
            if self.returns and ipu == 0:
                cycles = cycles + self._cycles_of_last[:, self.end :].sum(axis=1, keepdims=True)
                held = held + (self._held + self._stashed)[self.end :].sum()
                temporary = np.maximum(temporary, self._temporary[:, self.end :].max(axis=1, keepdims=True))
            self._known[ipu, start] = cycles, held + temporary
        return self._known[ipu, start]

    def _most(self, kind: int) -> float:
        """Return more cycles (0) or bytes (1) than any part has."""
        return float(sum(self._loads(ipu, 0)[kind].max() for ipu in range(self.ipus)) + np.abs(self.wrong[kind]).max())


def even_cuts(program: Program, ipus: int) -> list[tuple[str, ...]]:
    """Return the modules at which stages on so many IPUs begin that take, and then that hold, as equal parts as can be.

    Programs of too few modules have none.
    """
    recomputation = recomputation_over(program, program.execution, ipus)
    stages = Stages(replace(split_before(program, ()), recomputation=recomputation), ipus, shares=(None,))
    plans = (stages.fastest(math.inf), stages.leanest()) if stages.is_possible else ()
    return [stages.names(plan) for plan in plans if plan is not None]


def _least(is_enough: Callable[[float], bool], most: float) -> float:
    """Return the least number that is enough, nearly; `most` is."""
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _by_unit(
    amounts: Mapping[str, float], units: Iterable[Unit], join: Callable[[Iterable[float]], float] = sum
) -> Numbers:
    return np.array([join([amounts.get(scope, 0.0) for scope in unit.scopes]) for unit in units])


def _first_after_blocks(program: Program, units: Sequence[Unit]) -> int:
    """Return the place of the first unit after all repeated blocks; 0 if there are no blocks."""
    inside = tuple(f"{block}." for block in repeated_blocks(program.step))
    last = (place for place in reversed(range(len(units))) if f"{units[place].scopes[-1]}.".startswith(inside))
    return next(last, -1) + 1


def held_by_scope(program: Program) -> Mapping[str, float]:
    """Return bytes of weights, accumulators and state on the chip, by the module that reads the weight first."""
    scopes, on_chip = scopes_of_variables(program.step), program.locations.optimiser.on_chip
    held: defaultdict[str, float] = defaultdict(float)
    for variable in variables_of(program):
        if variable.name in scopes:
            size = variable.weight + variable.gradient * program.accumulates
            held[scopes[variable.name]] += size + variable.state * on_chip
    return held


def cycles_of_weights(program: Program, ipus: int) -> Mapping[str, float]:
    """Return cycles for each micro-batch of accumulating and updating weights, and moving their state, by module."""
    device, mover, scopes = program.settings.device, Mover(program), scopes_of_variables(program.step)
    updates = 1 / program.batching.accumulation
    cycles: defaultdict[str, float] = defaultdict(float)
    for cost in variable_costs(program):
        share = updates if cost.part == UPDATE_PART else 1
        cycles[scopes.get(cost.variable, "")] += device.total(cost.work.cycles) * share
    for variable in variables_of(program) if program.training else ():
        moved = mover.cycles([mover.update([variable])], [0])[0].total
        cycles[scopes.get(variable.name, "")] += moved * updates * ipus  # which stream at once, or in turn
    return cycles


def kept_by_scope(program: Program, mode: Recomputation = Recomputation.NONE) -> Mapping[str, float]:
    """Return bytes of what a micro-batch keeps for its backward pass, by the module that makes it."""
    step = program.step
    kept: defaultdict[str, float] = defaultdict(float)
    stored = kept_for_backward(replace(program, recomputation=mode))
    for root in dict.fromkeys(held.tensor.name for held in held_tensors(step, stored)):
        maker = step.producer(root)
        if maker is not None:
            kept[maker.scope] += device_bytes(step.tensors[root])
    return kept
