"""The device side of a compiled program: its variables and random streams, the loop over micro-batches, the results."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.batching import Batching, Keep, ReplicaGroups, Returns
from ipu_model.capture.graph import Graph, changeable_arguments, is_random
from ipu_model.compute.gradients import FINAL, Accumulator, AutomaticLossScaling, LossScalingSettings, reduce_in_groups
from ipu_model.compute.replay import Arithmetic, Replay, build, container_dtype
from ipu_model.compute.rounding import Overflow, nearest
from ipu_model.compute.threads import Threads
from ipu_model.process import interrupt_postponed
from ipu_model.step import Variable


@dataclass(frozen=True)
class Reduction:
    """How gradients become one update; `across(gradients)` sums in place over `processes`; this one is `process`."""

    mean: bool = True
    running: bool = False
    half: bool = False
    processes: int = 1
    process: int = 0
    across: Callable[[list[Tensor]], None] | None = None


# Parameters of glibc's mallopt(3), and values that keep blocks of up to 1 GiB on the heap, untrimmed up to 2 GiB.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BLOCK_BYTES = 2**31 - 1, 2**30

SWITCH = "IPU_MODEL_KEEP_MEMORY"

# What the host gets for a device value (executor reference, section 5.4).
RETURNED_DTYPE = {torch.int64: torch.int32, torch.float64: torch.float32}


@dataclass
class Collector:
    """Collects one output of every micro-batch in `[step, replica]` order; `once`: one result, as all are the same."""

    batching: Batching
    returns: Returns
    dtype: torch.dtype
    fresh: bool
    once: bool = False
    overflow: Overflow = Overflow.CLIP
    kept: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def take(self, step: int, replica: int, value: Tensor) -> None:
        if self.once:
            self.kept = self.kept or {(step, replica): value if self.fresh else value.clone()}
        elif self.returns.keep is Keep.SUM:
            total = self.kept.get((0, replica))
            if total is None:
                self.kept[0, replica] = value.clone()
                return
            total += value
            if self.dtype is torch.float16:
                nearest(self.overflow)(total)
        elif self.returns.kept(step, self.batching.steps):
            self.kept[step, replica] = value if self.fresh else value.clone()

    def result(self) -> Tensor:
        parts = [self.kept[key] for key in sorted(self.kept)]
        if len(parts) > 1:
            parts = [torch.stack(parts) if parts[0].dim() == 0 else torch.cat(parts)]
        return parts[0].to(RETURNED_DTYPE.get(self.dtype, self.dtype))


def constant_outputs(graph: Graph) -> tuple[bool, ...]:
    roots = graph.roots
    varying: set[torch.fx.Node] = set()
    for node in graph.ops.nodes:
        varies = node.op == "placeholder" or is_random(node)
        if varies or any(roots[source] in varying for source in node.all_input_nodes):
            varying.add(roots[node])
            varying.update(roots[written] for written in changeable_arguments(node))
    return tuple(roots[graph.by_name[o.node]] not in varying for o in graph.outputs if o.node is not None)


class Session:
    def __init__(
        self,
        graph: Graph,
        batching: Batching,
        returns: Returns,
        *,
        arithmetic: Arithmetic,
        reduction: Reduction,
        seed: int,
        watched_updates: Sequence[str],
        automatic_loss_scaling: LossScalingSettings | None,
        threads: Threads,
        replica_groups: Mapping[str, ReplicaGroups],
    ) -> None:
        """Compile `graph`; a run returns its outputs, then the values of `watched_updates` after each update."""
        self.graph, self._groups = graph, dict(replica_groups)
        self.threads, self._watched = threads, tuple(watched_updates)
        self.batching, self.returns, self.reduction, self.arithmetic = batching, returns, reduction, arithmetic
        self.randomness = RandomStreams(seed, batching.replicas, reduction.process * batching.replicas)
        # This updates the weights, from summed gradients and what remains to be multiplied in.
        self.update: Callable[[Mapping[str, Tensor], float], None] | None = None
        # This returns the numbers that the update reads, by name.
        self.numbers: Callable[[], Mapping[str, Tensor]] = dict
        self.loss_scaling = 1.0
        self.automatic: AutomaticLossScaling | None = None
        if automatic_loss_scaling is not None and graph.loss_spec is not None:
            half = [self._dtype(name) is torch.float16 for name in graph.gradients]
            self.automatic = AutomaticLossScaling(automatic_loss_scaling, half, graph.loss_spec.dtype, reduction.across)
        keep_freed_memory()
        self._replay: Replay = build(graph, arithmetic, self.randomness.generator)
        self._constant_outputs = constant_outputs(graph)
        # Each replica has its own values of buffers that the graph changes.
        of_replica = [v for v in graph.variables if v.tensor in graph.mutated and not v.trainable]
        self._replica_variables = [{v.name: self._empty(v) for v in of_replica} for _ in range(batching.replicas)]
        shared = (v for v in graph.variables if v.name not in self._replica_variables[0])
        self._weights = {v.name: self._empty(v, self._groups.get(v.name)) for v in shared}

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The trainable variables, as fp32 or container tensors that an updater changes in place."""
        return {v.name: self._weights[v.name] for v in self.graph.variables if v.trainable and v.name in self._weights}

    def upload(self, values: Mapping[str, Tensor]) -> None:
        for store in (self._weights, *self._replica_variables):
            for name, tensor in store.items():
                if name in values:
                    tensor.copy_(values[name].detach())

    def download(self) -> dict[str, Tensor]:
        """Return the variables of the first replica; the tensors are the device's own, copy them."""
        return {**self._weights, **self._replica_variables[0]}

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run one call on whole host batches; return a tensor for each output that is computed, then the updates."""
        # A program's own autocast must not affect the replay: the graph already fixes every element type.
        with torch.no_grad(), torch.autocast("cpu", enabled=False), self.threads.in_use():
            return self._run(inputs)

    def _run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        # On the device each input has memory of its own: those that forward changes must not share it here.
        uses = Counter(tensor.untyped_storage().data_ptr() for tensor in inputs)
        shared = [uses[tensor.untyped_storage().data_ptr()] > 1 for tensor in inputs]
        parts = [
            self._cut(tensor.detach().clone() if is_shared and node in self.graph.mutated else tensor, spec.dtype)
            for tensor, is_shared, (node, spec) in zip(inputs, shared, self.graph.inputs.items())
        ]
        collector = partial(Collector, self.batching, self.returns, overflow=self.arithmetic.overflow)
        specs = [output.spec for output in self.graph.outputs if output.spec is not None]
        collectors = [
            collector(spec.dtype, fresh, once=constant)
            for spec, fresh, constant in zip(specs, self._replay.fresh_outputs, self._constant_outputs)
        ]
        updates = [collector(self._dtype(name), fresh=False) for name in self._watched]
        for iteration in range(self.batching.device_iterations):
            seed = self._loss_seed()
            totals = self._accumulate(iteration, parts, seed, collectors)
            if self.update is not None and self.graph.gradients:
                with interrupt_postponed():  # An interrupted run must leave the weights of a complete update.
                    self._apply(totals)
                self._watch(iteration, updates)
                if self.automatic is not None:
                    self.automatic.adapt(self.loss_scaling)
        for (node, spec), part, tensor in zip(self.graph.inputs.items(), parts, inputs):
            if node in self.graph.mutated and part[0].data_ptr() != tensor.data_ptr():
                # Forward may have changed a converted copy of the caller's tensor.
                before = self._cut(tensor, spec.dtype)
                if not all(map(torch.equal, before, part)):
                    tensor.detach().copy_(torch.cat(part) if tensor.dim() else part[0])
        return [output.result() for output in (*collectors, *updates)]

    def _watch(self, iteration: int, updates: list[Collector]) -> None:
        """Collect the watched values after an update; they count as results of the last micro-batch before it."""
        step = (iteration + 1) * self.batching.accumulation - 1
        numbers = {FINAL: torch.tensor(self._final_loss_scale)}
        if not self._weights.keys() >= set(self._watched) - {FINAL}:
            numbers |= self.numbers()
        for collector, name in zip(updates, self._watched):
            for replica in range(self.batching.replicas):
                value = numbers[name] if name in numbers else self._weight(name, replica)
                collector.take(step, replica, value)

    def _weight(self, name: str, replica: int) -> Tensor:
        groups = self._groups.get(name)
        return self._weights[name] if groups is None else self._weights[name][groups.of(replica)]

    def _weight_of_own(self, variable: Variable, replica: int) -> Tensor:
        """Return the weight, or if forward may change it, for all replicas but the first of a group, a copy of it."""
        groups = self._groups.get(variable.name, ReplicaGroups(self.batching.replicas, self.batching.replicas))
        is_first = all(groups.of(other) != groups.of(replica) for other in range(replica))
        weight = self._weight(variable.name, replica)
        return weight if is_first or variable.tensor not in self.graph.mutated else weight.clone()

    def _dtype(self, watched: str) -> torch.dtype:
        variables = (v for v in self.graph.variables if v.name == watched)
        return next((self.graph.spec(v.tensor).dtype for v in variables), torch.float32)

    @property
    def _final_loss_scale(self) -> float:
        return self.loss_scaling * (1.0 if self.automatic is None else self.automatic.factor)

    def _accumulate(
        self, iteration: int, parts: list[list[Tensor]], seed: list[Tensor], collectors: list[Collector]
    ) -> list[list[Tensor]]:
        steps = self.batching.accumulation
        half, running, overflow = self.reduction.half and steps > 1, self.reduction.running, self.arithmetic.overflow
        fresh, replicas = self._replay.fresh_gradients, range(self.batching.replicas)
        accumulators = [Accumulator(fresh, half, running, overflow) for _ in replicas]
        these = range(iteration * steps, (iteration + 1) * steps)
        for step, replica, (outputs, gradients) in self._micro_batches(these, parts, seed):
            for collector, output in zip(collectors, outputs):
                collector.take(step, replica, output)
            if self.automatic is not None:
                self.automatic.observe(gradients)
            accumulators[replica].add(gradients)
        return [accumulator.totals for accumulator in accumulators]

    def _micro_batches(
        self, steps: range, parts: list[list[Tensor]], seed: list[Tensor]
    ) -> Iterator[tuple[int, int, Any]]:
        """Compute the steps of each replica in turn, or of all together if ops need them all; yield what comes out."""
        variables = [
            [own[v.name] if v.name in own else self._weight_of_own(v, replica) for v in self.graph.variables]
            for replica, own in enumerate(self._replica_variables)
        ]

        def operands(step: int, replica: int) -> list[Tensor]:
            index = self.batching.slice_index(step, replica)
            return [*variables[replica], *(part[index] for part in parts), *seed]

        replicas = range(self.batching.replicas)
        if self._replay.joint and len(replicas) > 1:
            for step in steps:
                results = self._replay.micro_batches([operands(step, replica) for replica in replicas], self._drawing)
                yield from ((step, replica, result) for replica, result in enumerate(results))
            return
        for replica in replicas:
            for step in steps:
                with self._drawing(replica):
                    result = self._replay.micro_batch(*operands(step, replica))
                yield step, replica, result

    def _drawing(self, replica: int) -> AbstractContextManager[None]:
        return self.randomness.drawing(replica) if self.graph.draws_random_numbers else nullcontext()

    def _apply(self, totals: list[list[Tensor]]) -> None:
        assert self.update is not None
        gradients = reduce_in_groups(totals, list(self.graph.gradients), self._groups, mean=self.reduction.mean)
        if self.reduction.across is not None:
            self.reduction.across(gradients)
        count = self.batching.replicas * self.reduction.processes
        if not self.reduction.running:
            count *= self.batching.accumulation
        scale = 1.0 / count if self.reduction.mean else 1.0
        if self.automatic is not None:
            # The result is scaled only by the optimiser's own loss scaling, as the update expects.
            scale /= self.automatic.factor
        self.update(dict(zip(self.graph.gradients, gradients)), scale)

    def _loss_seed(self) -> list[Tensor]:
        spec = self.graph.loss_spec
        if spec is None:
            return []
        seed = torch.full(spec.shape, self._final_loss_scale, dtype=container_dtype(spec.dtype))
        return [nearest(self.arithmetic.overflow)(seed) if spec.dtype is torch.float16 else seed]

    def _cut(self, tensor: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """Cut a host batch into micro-batches of the device's element type; views where nothing changes."""
        tensor = tensor.detach()
        if dtype is torch.int64:
            tensor = tensor.to(torch.int32)
        tensor = tensor.to(container_dtype(dtype)).contiguous()
        if tensor.dim() == 0:
            return [tensor]
        return list(tensor.split(tensor.shape[0] // self.batching.slices))

    def _empty(self, variable: Variable, groups: ReplicaGroups | None = None) -> Tensor:
        stacked = () if groups is None else (groups.count,)
        spec = self.graph.spec(variable.tensor)
        return torch.zeros((*stacked, *spec.shape), dtype=container_dtype(spec.dtype))


# --- the random streams: one for each replica, apart from the host's generator

# Spreads replica streams over seeds; any odd 64-bit constant works (this is 2^64 divided by the golden ratio).
_STRIDE = 0x9E3779B97F4A7C15


class RandomStreams:
    """Generator states of `replicas` replicas from one seed; in the whole run, the first has the index `first`."""

    def __init__(self, seed: int, replicas: int, first: int = 0) -> None:
        self._first, self.generator = first, torch.Generator()  # from which programs draw
        self._common: torch.Generator | None = None
        self._reseeds_common = False
        self._begin(seed, replicas)

    def _begin(self, seed: int, replicas: int) -> None:
        self.seed = seed
        self._states = [self._initial(seed + (self._first + replica) * _STRIDE) for replica in range(replicas)]

    @staticmethod
    def _initial(seed: int) -> Tensor:
        # manual_seed takes 63-bit values; a wrapped value is an equally good seed.
        return torch.Generator().manual_seed(seed & 0x7FFFFFFFFFFFFFFF).get_state()

    def keep(self, common: torch.Generator, *, reseeded: bool) -> None:
        """Make `common`, the same for all replicas, part of the state; a new seed also applies if `reseeded`."""
        self._common, self._reseeds_common = common, reseeded

    @contextmanager
    def drawing(self, replica: int) -> Iterator[None]:
        self.generator.set_state(self._states[replica])
        try:
            yield
        finally:
            self._states[replica] = self.generator.get_state()

    def state(self) -> list[int]:
        """Return the seed followed by the bytes of every stream's state, that of the common one last."""
        states = [*self._states, *([] if self._common is None else [self._common.get_state()])]
        return [self.seed, *(byte for state in states for byte in state.tolist())]

    def check(self, state: Sequence[object]) -> None:
        expected = 1 + self._states[0].numel() * (len(self._states) + (self._common is not None))
        if len(state) not in (1, expected):
            raise ValueError(f"rng_state has {len(state)} entries, expected 1 or {expected}.")
        numbers = [word for word in state if isinstance(word, int)]
        seed_fits = all(0 <= seed < 2**64 for seed in numbers[:1])
        if len(numbers) < len(state) or not seed_fits or not all(0 <= word < 256 for word in numbers[1:]):
            raise ValueError("rng_state holds other values than a seed and bytes. Give it what rng_state returned.")

    def restore(self, state: list[int]) -> None:
        """Continue from a list that `state` returned, or from a new seed: a list of one number. Raises as `check`."""
        self.check(state)
        replicas = len(self._states)
        if len(state) == 1:
            self._begin(state[0], replicas)
            if self._common is not None and self._reseeds_common:
                self._common.set_state(self._initial(state[0]))
            return
        size = self._states[0].numel()
        words = torch.tensor(state[1:], dtype=torch.uint8)
        # set_state reads the memory of a view from its start: each state needs its own.
        states = [part.clone() for part in words.split(size)]
        try:
            for stream in states:
                torch.Generator().set_state(stream)
        except RuntimeError as error:
            raise ValueError("rng_state is not a state of a random generator.") from error
        self.seed, self._states = state[0], states[:replicas]
        if self._common is not None:
            self._common.set_state(states[-1])


# --- memory that the process keeps


@cache
def keep_freed_memory() -> bool:
    """Ask glibc, once, to keep freed blocks, which replays need again; return whether it agreed."""
    if not sys.platform.startswith("linux") or os.environ.get(SWITCH) == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        # Another C library (musl, say).
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
