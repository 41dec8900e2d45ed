"""The tensors that occupy device memory: those of a micro-batch, and those that live for the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ipu_model.predict.costs import Costs, OpCost
from ipu_model.predict.device import Element
from ipu_model.predict.memory.tiles import Contents, Spread, TileSpace
from ipu_model.predict.op_profiles import naming_of
from ipu_model.predict.ops.contractions import CONTRACTIONS
from ipu_model.predict.ops.pointwise import dropout_masks
from ipu_model.predict.profile import CONSTANTS, OPTIMISER_STATE, VARIABLES
from ipu_model.predict.program import Program
from ipu_model.predict.remembered import remembered
from ipu_model.predict.remote import DeviceVariable, variables_of
from ipu_model.step import DType, Op, Source, Step, Tensor

# Second results that the device does not make: the gradient of a maximum compares inputs and outputs again.
_POOLS = ("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d")


@remembered
def _contents_of(step: Step) -> dict[str, Contents]:
    names = naming_of(step).tensors
    return {name: Contents(names[name], tensor.shape, tensor.dtype.name) for name, tensor in step.tensors.items()}


class Storages:
    """The tensors of one step by the one that their storage was made for (`roots`), and the costs of ops (`parts`)."""

    def __init__(self, step: Step, costs: Costs, space: TileSpace) -> None:
        self.step, self.space = step, space
        self.contents: Mapping[str, Contents] = _contents_of(step)
        self.parts: dict[str, list[OpCost]] = {}
        for op in costs.ops:
            self.parts.setdefault(op.node, []).append(op)
        self._layouts = costs.layouts
        self._spreads: dict[str, Spread] = {}
        stand_in: dict[str, str] = {}
        for tensor in step.tensors.values():
            if tensor.is_storage:
                stand_in[tensor.name] = self._stand_in(tensor, stand_in)
        self.roots = {tensor.name: stand_in[tensor.storage] for tensor in step.tensors.values()}
        # The tensors that stay: variables, the seed, and what is known when compiling.
        lasting = [name for name, source in step.storages.items() if source in (Source.VARIABLE, Source.SEED)]
        self.residents = frozenset((*self.constants, *lasting))
        # The results that IPUs make for the host.
        outputs = set(step.outputs)
        self.returned = [n for n in step.tensors if n in outputs and self.ipu(self.roots[n]) is not None]
        # Not kept for the backward pass, because they can be drawn again.
        self.drawn_again = frozenset(self.roots[mask.name] for mask in dropout_masks(step))
        # The weights of convolutions and matrix products: PopLibs cuts them less finely than other tensors, and lays
        # them out from the last tile of a plan on (lib/poplin/Convolution.cpp, calculateActivationsOrWeightsUsage).
        weights = {v.tensor for v in step.variables if len(step.tensors[v.tensor].shape) > 1}
        products = (op for op in step.ops if op.kind in CONTRACTIONS)
        self._multiplied = weights.intersection(root for op in products for root in self.read_by(op))

    def _stand_in(self, tensor: Tensor, known: Mapping[str, str]) -> str:
        """Return the tensor that the device keeps in place of this one: usually the tensor itself."""
        step, op = self.step, self.step.producer(tensor.name)
        if op is None:
            return tensor.name
        is_second = op.kind in _POOLS and tensor.index == 1 and tensor.name not in step.returned
        if is_second and all(reader.is_backward for reader in step.readers.get(tensor.name, ())):
            return next((result.name for result in step.results_of(op) if result.index == 0), tensor.name)
        operands = step.read_by(op)
        if op.name not in self.parts and operands and not op.makes_constant:
            return known[operands[0].storage]  # no code runs: the same tensor under another name or type
        return tensor.name

    def ipu(self, root: str) -> int | None:
        """Return the IPU on which a tensor is made; `None` for variables, inputs and constants."""
        maker = self.step.producer(root)
        return None if maker is None else maker.ipu

    def is_backward(self, name: str) -> bool:
        maker = self.step.producer(name)
        return maker is not None and maker.is_backward

    @cached_property
    def constants(self) -> list[str]:
        step, constants = self.step, list[str]()
        written = {self.roots.get(name) for op in step.ops for name in op.writes}
        for name in step.tensors:
            maker = step.producer(name)
            known = step.source(name) is Source.CONSTANT if maker is None else maker.makes_constant
            is_own = known and name not in written and self.roots[name] == name
            if is_own and (maker is None or maker.name not in self.parts):
                constants.append(name)
        return constants

    @cached_property
    def readers(self) -> Mapping[str, set[int]]:
        """The other IPUs that read a tensor, for tensors that cross to another IPU."""
        readers: dict[str, set[int]] = {}
        for op in self.step.ops if len(self.step.ipus) > 1 else ():
            for root in self.read_by(op) if op.name in self.parts else ():
                if self.ipu(root) not in (None, op.ipu):
                    readers.setdefault(root, set()).add(op.ipu)
        return readers

    def spread(self, root: str) -> Spread:
        if root not in self._spreads:
            tensor = self.step.tensors[root]
            layout, element = self._layouts.get(root), Element.of(tensor.dtype)
            on_tile = layout.on_tile if layout is not None else self.space.device.spread(tensor.elements, element)
            multiplied = root in self._multiplied
            if multiplied:
                least = self.space.device.calibration.memory.least_weight_bytes_per_tile
                on_tile = max(on_tile, least / element.bytes)
            self._spreads[root] = self.space.place(tensor.elements, on_tile, element.bytes, at_end=multiplied)
        return self._spreads[root]

    def made_by(self, op: Op) -> list[str]:
        return [result.name for result in self.step.results_of(op) if self.roots[result.name] == result.name]

    def read_by(self, op: Op) -> list[str]:
        return list(dict.fromkeys(self.roots[tensor.name] for tensor in self.step.read_by(op)))

    def widest(self, roots: Iterable[str]) -> int:
        return max((self.spread(root).tiles for root in roots), default=1)


@dataclass(frozen=True)
class Resident:
    """A tensor that is always live; `fetched` comes to the tiles for each use, from streaming memory or replicas."""

    category: str
    ipu: int
    variable: str
    place: Spread | None
    fetched: Spread | None = None
    off_chip: float = 0.0
    contents: Contents | None = None


def residents(program: Program, storages: Storages) -> list[Resident]:
    residents = []
    for name in storages.constants:
        ipu = next((reader.ipu for reader in program.step.readers.get(name, ())), 0)
        residents.append(Resident(CONSTANTS, ipu, "", storages.spread(name), contents=storages.contents[name]))
    for variable in variables_of(program):
        residents += [_resident(program, storages, variable, *kept) for kept in variable.kept]
    return residents


def _resident(program: Program, storages: Storages, variable: DeviceVariable, category: str, dtype: DType) -> Resident:
    """Return a tensor of this type and of the size of a variable, which lies as the variable does."""
    locations, tensor, ipu = program.locations, program.step.tensors[variable.tensor], variable.ipu
    location = {VARIABLES: locations.weights, OPTIMISER_STATE: locations.optimiser}.get(
        category, locations.accumulators
    )
    elements, element = tensor.elements, Element.of(tensor.dtype)
    whole = storages.spread(tensor.name).times(Element.of(dtype).bytes / element.bytes)
    sharded = program.replicas > 1 and location.is_sharded(elements)
    # Each replica has its part of what every tile holds (GCL's collective balanced reorder, which PopART uses).
    part = whole.times(1 / program.replicas) if sharded else whole
    if location.is_off_chip(elements):
        # With sharding, each replica fetches its part, and weights are put together from all parts.
        brought = whole if category == VARIABLES else part
        return Resident(category, ipu, variable.name, None, brought, off_chip=part.total)
    brought_too = whole if sharded and category == VARIABLES else None
    contents = Contents(variable.name, tensor.shape, dtype.name)
    return Resident(category, ipu, variable.name, part, brought_too, contents=contents)
