"""The transfers for tensors that live in streaming memory or are sharded over replicas.

Off chip, a tensor is read before the pass that uses it and written back after a pass that changes it:

* weights: read for the forward and the backward pass of every micro-batch and for the update, which writes them;
* accumulators: read and written in every backward pass, and by the update, which resets them;
* optimiser state: read and written by the update (and in every backward pass where gradients are accumulated in it);
* activations: those kept for the backward pass are written by the forward pass and read by the backward pass.

Each replica moves its own part of a sharded tensor. Sharded weights are gathered before each pass; sharded accumulators
get each micro-batch's gradients by a reduce-scatter. LAMB divides two norms of each tensor; where each replica updates
a part of it, the sums of squares are added up over all replicas, one number each (PopART, LambSquare).

The IPUs of a machine share its streaming memory. Those that stream at the same time get equal parts of the rate, and
one that goes on alone gets all of it. IPUs that update one after another never share it with their own replica.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ipu_model.errors import Error
from ipu_model.optimiser import Hyper, OptimiserSpec, weight_update
from ipu_model.predict.device import Element
from ipu_model.predict.links import Ring, replicas_per_machine, ring_of
from ipu_model.predict.ops.updates import variable_ipus
from ipu_model.predict.order import Held, device_bytes
from ipu_model.predict.profile import PhaseCycles
from ipu_model.predict.program import Location, Program
from ipu_model.predict.remembered import remembered
from ipu_model.step import Step


@dataclass(frozen=True)
class DeviceVariable:
    """One variable: where it is used, its elements, and the bytes of weight, accumulated gradient and state.

    `state` does not include the accumulator, unless the optimiser keeps velocity and accumulator in one tensor
    (`accumulates_in_state`).
    """

    name: str
    stage: int
    ipu: int
    elements: int
    trainable: bool
    weight: float
    gradient: float
    state: float = 0.0
    accumulates_in_state: bool = False


def variables_of(program: Program) -> tuple[DeviceVariable, ...]:
    """Return the variables of a program in graph order; buffers and frozen weights have no gradient."""
    return _variables(program.step, program.optimiser, program.groups, program.training, program.accumulates)


@remembered
def _variables(
    step: Step, spec: OptimiserSpec | None, groups: Mapping[str, int | None], training: bool, accumulates: bool
) -> tuple[DeviceVariable, ...]:
    ipus, stage_of = variable_ipus(step), variable_stages(step)
    found = []
    for variable in step.variables:
        tensor = step.tensors[variable.tensor]
        elements, weight = tensor.elements, Element.of(tensor.dtype).bytes
        trained = training and variable.name in step.gradients
        gradient = float(weight)
        state, combined = 0.0, False
        if trained and spec is not None:
            state, combined = _state(spec, spec.hyper(groups.get(variable.name)))
            gradient = float(spec.accum_dtype.bytes) if accumulates else gradient
        found.append(
            DeviceVariable(
                variable.name, stage_of[variable.name], ipus[variable.name], elements, trained,
                elements * weight, elements * gradient * trained, elements * state, combined,
            )
        )  # fmt: skip
    return tuple(found)


def part(program: Program, elements: int, location: Location) -> float:
    """Return the share of a tensor that one replica holds."""
    is_split = elements > 0 and location.is_sharded(elements)
    return math.ceil(elements / program.replicas) / elements if is_split else 1.0


def is_sharded_update(program: Program, tensor: DeviceVariable) -> bool:
    """Whether each replica updates only its part of a tensor, because weights, state or accumulators are sharded."""
    where = program.locations
    return any(
        part(program, tensor.elements, each) < 1 for each in (where.weights, where.optimiser, where.accumulators)
    )


def updated_elements(program: Program, tensors: tuple[DeviceVariable, ...]) -> Mapping[str, int]:
    """Return how many elements one replica updates, for each tensor that it updates only in part."""
    return {
        tensor.name: math.ceil(tensor.elements / program.replicas)
        for tensor in tensors
        if tensor.trainable and is_sharded_update(program, tensor)
    }


@lru_cache(maxsize=256)
def _state(spec: OptimiserSpec, hyper: Hyper) -> tuple[float, bool]:
    """Return the bytes of state for each element, and whether gradients are accumulated in it."""
    update = weight_update(spec, hyper)
    return float(sum(slot.dtype.bytes for slot in update.weight_sized_state)), update.accumulates_in_state


def variable_stages(step: Step) -> dict[str, int]:
    """Return the stage that computes each variable's gradient, or else the first stage that reads the variable."""
    found: dict[str, int] = {}
    for variable in step.variables:
        gradient = step.gradients.get(variable.name)
        maker = None if gradient is None else step.producer(gradient)
        readers = step.readers.get(variable.tensor, ())
        found[variable.name] = min((reader.stage for reader in readers), default=0) if maker is None else maker.stage
    return found


@dataclass(frozen=True)
class Moves:
    """The transfers of one pass: bytes to and from streaming memory, and seconds of collectives.

    `transfers` counts the tensors read from or written to streaming memory.
    """

    remote_bytes: float = 0.0
    collective_seconds: float = 0.0
    transfers: int = 0

    def __add__(self, other: Moves) -> Moves:
        return Moves(
            self.remote_bytes + other.remote_bytes,
            self.collective_seconds + other.collective_seconds,
            self.transfers + other.transfers,
        )


@dataclass(frozen=True)
class Mover:
    """Turns the locations of a program's tensors into moves, and moves into cycles."""

    program: Program
    ring: Ring

    def forward(self, tensors: Iterable[DeviceVariable], held: Iterable[Held]) -> Moves:
        """Return what the forward pass of a micro-batch moves."""
        return self._sum([*map(self._use, tensors), *map(self._keep, held)])

    def backward(self, tensors: Iterable[DeviceVariable], held: Iterable[Held]) -> Moves:
        """Return what the backward pass of a micro-batch moves."""
        own = tuple(tensors)
        return self._sum([*map(self._use, own), *map(self._accumulate, own), *map(self._keep, held)])

    def update(self, tensors: Iterable[DeviceVariable]) -> Moves:
        """Return what one weight update moves: gradients between replicas, and all tensors that are off chip."""
        return self._sum(self._update(tensor) for tensor in tensors if tensor.trainable)

    def cycles(self, moves: Sequence[Moves], ipus: Sequence[int], *, in_turn: bool = False) -> tuple[PhaseCycles, ...]:
        """Return the cycles of the moves of several IPUs; before each transfer off chip the device synchronises.

        `ipus[i]` is the IPU of `moves[i]`. All start together, or one IPU after another if `in_turn` is true.

        Raises:
            Error: something is off chip on a machine without streaming memory.
        """
        chip = self.program.system.chip
        streamed = [each.remote_bytes for each in moves]
        seconds = self._streaming_seconds(streamed, ipus, in_turn=in_turn) if any(streamed) else [0.0] * len(streamed)
        return tuple(
            PhaseCycles(
                stream_copy_begin=float(each.transfers * chip.global_sync_cycles),
                stream_copy_mid=spent * chip.clock_hz,
                global_exchange=each.collective_seconds * chip.clock_hz,
            )
            for each, spent in zip(moves, seconds, strict=True)
        )

    def _sum(self, moves: Iterable[Moves]) -> Moves:
        found = Moves()
        for each in moves:
            found = found + each
        return found

    def _use(self, tensor: DeviceVariable) -> Moves:
        where = self.program.locations.weights
        held = part(self.program, tensor.elements, where)
        off_chip = where.is_off_chip(tensor.elements)
        remote = tensor.weight * held if off_chip else 0.0
        return Moves(remote, self.ring.all_gather(tensor.weight) if held < 1 else 0.0, transfers=int(off_chip))

    def _accumulate(self, tensor: DeviceVariable) -> Moves:
        if not tensor.trainable or not self.program.accumulates:
            return Moves()
        locations = self.program.locations
        if tensor.accumulates_in_state:
            size, where = tensor.state, locations.optimiser
        else:
            size, where = tensor.gradient, locations.accumulators
        held = part(self.program, tensor.elements, where)
        moves = 2 * where.is_off_chip(tensor.elements)
        in_parts = part(self.program, tensor.elements, locations.accumulators) < 1
        return Moves(moves * size * held, self.ring.reduce_scatter(tensor.gradient) if in_parts else 0.0, moves)

    def _keep(self, held: Held) -> Moves:
        off_chip = self.program.locations.activations.is_off_chip(held.tensor.elements)
        return Moves(float(device_bytes(held.tensor)), transfers=1) if off_chip else Moves()

    def _update(self, tensor: DeviceVariable) -> Moves:
        program, locations = self.program, self.program.locations
        sizes = [(locations.weights, tensor.weight), (locations.optimiser, tensor.state)]
        if program.accumulates and not tensor.accumulates_in_state:
            sizes.append((locations.accumulators, tensor.gradient))
        remote = [
            2 * size * part(program, tensor.elements, where)
            for where, size in sizes
            if size and where.is_off_chip(tensor.elements)
        ]
        return Moves(sum(remote), self._exchange_gradient(tensor), transfers=2 * len(remote))

    def _exchange_gradient(self, tensor: DeviceVariable) -> float:
        """Return the seconds of collectives for one tensor at the update."""
        program, locations = self.program, self.program.locations
        if not is_sharded_update(program, tensor):
            return self.ring.all_reduce(tensor.gradient)
        seconds = 0.0
        if not (program.accumulates and part(program, tensor.elements, locations.accumulators) < 1):
            seconds += self.ring.reduce_scatter(tensor.gradient)
        if not part(program, tensor.elements, locations.weights) < 1:
            seconds += self.ring.all_gather(tensor.weight)
        if program.optimiser is not None and program.optimiser.family.startswith("LAMB"):
            seconds += 2 * self.ring.all_reduce(Element.FLOAT.bytes)
        return seconds

    def _streaming_seconds(self, moved: Sequence[float], ipus: Sequence[int], *, in_turn: bool) -> list[float]:
        """Return the seconds that each of the IPUs streams `moved` bytes, whose order is that of `ipus`.

        Every replica gets an equal part of its machine's rate, and does the same at the same time.
        """
        rate = self._rate_of_machine() / replicas_per_machine(self.program)
        if in_turn:
            return [size / rate for size in moved]
        per_machine = self.program.system.ipus_per_machine
        by_machine: dict[int, dict[int, float]] = {}
        for size, ipu in zip(moved, ipus, strict=True):
            own = by_machine.setdefault(ipu // per_machine, {})
            own[ipu] = own.get(ipu, 0.0) + size
        ends = {ipu: end for own in by_machine.values() for ipu, end in shared_seconds(own, rate).items()}
        whole = {ipu: size for own in by_machine.values() for ipu, size in own.items()}
        return [ends[ipu] * size / whole[ipu] if size else 0.0 for size, ipu in zip(moved, ipus, strict=True)]

    def _rate_of_machine(self) -> float:
        """Return a machine's streaming-memory bandwidth in bytes per second."""
        system = self.program.system
        if system.streaming_bytes_per_second <= 0:
            raise Error(
                f"Tensors are placed off chip, but {system.name} has no streaming memory. Keep them on chip "
                "(useOnChipStorage(True)), or use a machine that has some, such as an M2000."
            )
        return system.streaming_bytes_per_second


def shared_seconds(sizes: Mapping[int, float], rate: float) -> dict[int, float]:
    """Return when each of several transfers ends that begin together and share `rate` bytes per second equally.

    Those that go on share what the others leave: with n transfers of b bytes at least, the first ends after n b / rate.
    """
    found: dict[int, float] = {}
    now = done = 0.0
    for left, (key, size) in zip(range(len(sizes), 0, -1), sorted(sizes.items(), key=lambda item: item[1])):
        now += left * (size - done) / rate
        done = size
        found[key] = now
    return found


def mover_of(program: Program) -> Mover:
    """Return the mover of a program's tensors."""
    return Mover(program, ring_of(program))
