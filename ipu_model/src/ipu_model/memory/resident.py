"""What lives for the whole run: variables, optimiser state, gradient accumulators, constants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ipu_model.memory import categories
from ipu_model.memory.spread import Spread
from ipu_model.memory.storage import Storages
from ipu_model.optimiser import OptimiserSpec, weight_update
from ipu_model.predict.device import Element
from ipu_model.program import Location, Program
from ipu_model.step import DType, Tensor, Variable


@dataclass(frozen=True)
class Resident:
    """One tensor that is always live: its category and its place on the tiles of an IPU.

    `off_chip` are its bytes in streaming memory, and `fetched` what comes to the tiles of the IPU whenever it
    is worked on, because it lives elsewhere or other replicas have parts of it. `variable` is the weight that
    it belongs to.
    """

    category: str
    ipu: int
    variable: str
    place: Spread | None
    fetched: Spread | None = None
    off_chip: float = 0.0


@dataclass(frozen=True)
class Fetched:
    """Tensors that are brought to the tiles for a step and leave them after it."""

    _weights: Mapping[str, Spread] = field(default_factory=dict)
    _states: Mapping[str, list[Spread]] = field(default_factory=dict)
    _accumulators: Mapping[str, list[Spread]] = field(default_factory=dict)
    _weight_of: Mapping[str, Spread] = field(default_factory=dict)

    def by_reading(self, roots: Iterable[str]) -> list[Spread]:
        """Return the weights among `roots` that are fetched."""
        return [self._weights[root] for root in roots if root in self._weights] if self._weights else []

    def by_accumulation(self, variable: str) -> list[Spread]:
        """Return what is fetched to add a gradient to the accumulator of a variable."""
        return self._accumulators.get(variable, [])

    def by_update(self, variable: str) -> list[Spread]:
        """Return what is fetched to update a variable."""
        weight = [self._weight_of[variable]] if variable in self._weight_of else []
        return [*weight, *self._states.get(variable, []), *self._accumulators.get(variable, [])]


def residents(program: Program, storages: Storages, ipus: Mapping[str, int]) -> list[Resident]:
    """Return all tensors that are always live; `ipus` says where each variable is."""
    step = program.step
    found = [_constant(storages, name) for name in storages.constants]
    for variable in step.variables:
        keeper = _Keeper(program, storages, variable, ipus[variable.name])
        found.append(keeper.keep(categories.VARIABLES, keeper.tensor.dtype, program.locations.weights))
        if program.training and variable.name in step.gradients:
            found += _of_trainable(program, variable, keeper)
    return found


def fetched(found: Iterable[Resident], program: Program) -> Fetched:
    """Return what is not always on the tiles of its IPU in full."""
    tensor_of = {variable.name: variable.tensor for variable in program.step.variables}
    weights: dict[str, Spread] = {}
    weight_of: dict[str, Spread] = {}
    states: dict[str, list[Spread]] = {}
    accumulators: dict[str, list[Spread]] = {}
    for each in found:
        if each.fetched is None:
            continue
        if each.category == categories.VARIABLES:
            weights[tensor_of[each.variable]] = weight_of[each.variable] = each.fetched
        else:
            into = states if each.category == categories.OPTIMISER_STATE else accumulators
            into.setdefault(each.variable, []).append(each.fetched)
    return Fetched(weights, states, accumulators, weight_of)


def optimiser_tensors(
    spec: OptimiserSpec | None, weight: DType, *, accumulates: bool, group: int | None = None
) -> tuple[dict[str, DType], DType | None]:
    """Return the tensors of a weight's size that an optimiser keeps: its state, and the accumulator's type.

    The accumulator is `None` where there is none: without accumulation, or where it is part of the state.
    """
    if spec is None:
        return {}, weight if accumulates else None
    update = weight_update(spec, spec.hyper(group), accumulates=accumulates)
    state = {slot.prefix: slot.dtype for slot in update.weight_sized_state}
    apart = accumulates and not update.accumulates_in_state
    return state, spec.accum_dtype if apart else None


def _of_trainable(program: Program, variable: Variable, keeper: _Keeper) -> list[Resident]:
    state, accumulator = optimiser_tensors(
        program.optimiser, keeper.tensor.dtype, accumulates=program.accumulates,
        group=program.groups.get(variable.name),
    )  # fmt: skip
    locations = program.locations
    found = [keeper.keep(categories.OPTIMISER_STATE, dtype, locations.optimiser) for dtype in state.values()]
    if accumulator is not None:
        found.append(keeper.keep(categories.ACCUMULATORS, accumulator, locations.accumulators))
    return found


def _constant(storages: Storages, name: str) -> Resident:
    ipu = next((reader.ipu for reader in storages.step.readers.get(name, ())), 0)
    return Resident(categories.CONSTANTS, ipu, "", storages.spread(name))


@dataclass(frozen=True)
class _Keeper:
    """Places the tensors of the size of one variable, which all lie as the variable does."""

    program: Program
    storages: Storages
    variable: Variable
    ipu: int

    @property
    def tensor(self) -> Tensor:
        """The variable as a tensor."""
        return self.storages.step.tensors[self.variable.tensor]

    def keep(self, category: str, dtype: DType, location: Location) -> Resident:
        """Return one tensor of this type in its place."""
        elements = self.tensor.elements
        whole = self._place(elements, dtype)
        sharded = self.program.replicas > 1 and location.is_sharded(elements)
        held = self._place(math.ceil(elements / self.program.replicas), dtype) if sharded else whole
        if location.is_off_chip(elements):
            # With sharding, each replica fetches its part, and weights are put together from all parts.
            brought = whole if category == categories.VARIABLES else held
            return Resident(category, self.ipu, self.variable.name, None, brought, off_chip=held.total)
        brought_too = whole if sharded and category == categories.VARIABLES else None
        return Resident(category, self.ipu, self.variable.name, held, brought_too)

    def _place(self, elements: int, dtype: DType) -> Spread:
        """Return the place of `elements` of this type, which lie where those of the weight do."""
        tensor, room = self.tensor, self.storages.room
        if elements == tensor.elements:
            weight = self.storages.spread(tensor.name)
            return weight.times(Element.of(dtype).bytes / Element.of(tensor.dtype).bytes)
        on_tile = room.device.spread(elements, Element.of(tensor.dtype))
        return room.place(elements, on_tile, Element.of(dtype).bytes)
