"""What it takes that tensors live in streaming memory, or in parts on several replicas.

Off chip, a tensor is read before the pass that uses it and written back after a pass that changes it:

* weights: read for the forward and the backward pass of every micro-batch and for the update, which writes them;
* accumulators: read and written in every backward pass, and by the update, which resets them;
* optimiser state: read and written by the update (and in every backward pass where gradients are accumulated in it);
* activations: what waits for the backward pass is written by the forward pass and read by the backward pass.

Of a tensor in parts, each replica moves its own part. Weights in parts are gathered before each pass; accumulators in
parts get each micro-batch's gradients by a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ipu_model.errors import Error
from ipu_model.profiling.data import PhaseCycles
from ipu_model.program import Execution, Program
from ipu_model.schedule.collectives import Ring, ring_of
from ipu_model.schedule.held import Held
from ipu_model.schedule.streams import replicas_per_machine
from ipu_model.schedule.traffic import device_bytes
from ipu_model.schedule.variables import Tensor, is_sharded_update, part


@dataclass(frozen=True)
class Moves:
    """What one pass moves besides its work: bytes to and from streaming memory, seconds of collectives.

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

    def forward(self, tensors: Iterable[Tensor], held: Iterable[Held]) -> Moves:
        """Return what the forward pass of a micro-batch moves."""
        return self._sum([*map(self._use, tensors), *map(self._keep, held)])

    def backward(self, tensors: Iterable[Tensor], held: Iterable[Held]) -> Moves:
        """Return what the backward pass of a micro-batch moves."""
        own = tuple(tensors)
        return self._sum([*map(self._use, own), *map(self._accumulate, own), *map(self._keep, held)])

    def update(self, tensors: Iterable[Tensor]) -> Moves:
        """Return what one weight update moves: gradients between replicas, and everything that is off chip."""
        return self._sum(self._update(tensor) for tensor in tensors if tensor.trainable)

    def cycles(self, moves: Moves) -> PhaseCycles:
        """Return the cycles of moves; before each transfer to or from streaming memory the device synchronises.

        Raises:
            Error: something is off chip on a machine without streaming memory.
        """
        chip = self.program.system.chip
        seconds = moves.remote_bytes / self._remote_rate() if moves.remote_bytes else 0.0
        return PhaseCycles(
            stream_copy_begin=float(moves.transfers * chip.global_sync_cycles),
            stream_copy_mid=seconds * chip.clock_hz,
            global_exchange=moves.collective_seconds * chip.clock_hz,
        )

    def _sum(self, moves: Iterable[Moves]) -> Moves:
        found = Moves()
        for each in moves:
            found = found + each
        return found

    def _use(self, tensor: Tensor) -> Moves:
        where = self.program.locations.weights
        held = part(self.program, tensor.elements, where)
        off_chip = where.is_off_chip(tensor.elements)
        remote = tensor.weight * held if off_chip else 0.0
        return Moves(remote, self.ring.all_gather(tensor.weight) if held < 1 else 0.0, transfers=int(off_chip))

    def _accumulate(self, tensor: Tensor) -> Moves:
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

    def _update(self, tensor: Tensor) -> Moves:
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

    def _exchange_gradient(self, tensor: Tensor) -> float:
        """Return the seconds of collectives for one tensor at the update."""
        program, locations = self.program, self.program.locations
        if not is_sharded_update(program, tensor):
            return self.ring.all_reduce(tensor.gradient)
        seconds = 0.0
        if not (program.accumulates and part(program, tensor.elements, locations.accumulators) < 1):
            seconds += self.ring.reduce_scatter(tensor.gradient)
        if not part(program, tensor.elements, locations.weights) < 1:
            seconds += self.ring.all_gather(tensor.weight)
        return seconds

    def _remote_rate(self) -> float:
        """Return the bytes per second that one IPU gets of its machine's streaming memory."""
        program, system = self.program, self.program.system
        if system.streaming_bytes_per_second <= 0:
            raise Error(
                f"Tensors are placed off chip, but {system.name} has no streaming memory. Keep them on chip "
                "(useOnChipStorage(True)), or use a machine that has some, such as an M2000."
            )
        # IPUs of a pipeline stream at the same time; of a sharded program, one at a time.
        own = 1 if program.execution is Execution.SHARDED else len(program.step.ipus)
        sharing = min(system.ipus_per_machine, replicas_per_machine(program) * own)
        return system.streaming_bytes_per_second / sharing


def mover_of(program: Program) -> Mover:
    """Return what moves the tensors of a program."""
    return Mover(program, ring_of(program))
