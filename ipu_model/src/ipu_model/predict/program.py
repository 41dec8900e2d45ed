"""The input of the performance model: one micro-batch, all options for running it; and a cache of what follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ipu_model.batching import Batching, Returns
from ipu_model.errors import Error
from ipu_model.optimiser import OptimiserSpec
from ipu_model.predict.calibration import Calibration
from ipu_model.predict.device import CostSettings
from ipu_model.predict.hardware import System, system_named
from ipu_model.step import DType, Step


class Execution(str, Enum):
    """How IPUs share work; `INTERLEAVED` is a what-if: alternating passes of neighbours halve the stashes."""

    PIPELINED = "pipelined"
    INTERLEAVED = "interleaved"
    SHARDED = "sharded"


class Recomputation(str, Enum):
    """Which activations are recomputed for the backward pass (PopART's `autoRecomputation`).

    `PIPELINE` and `ALL` keep inputs of a stage and checkpoints of the program, `STANDARD` chooses checkpoints by
    liveness, `NORM_ONLY` recomputes norms and activations that follow them.
    """

    NONE = "none"
    STANDARD = "standard"
    NORM_ONLY = "norm only"
    PIPELINE = "pipeline"
    ALL = "all"


@dataclass(frozen=True)
class Location:
    """Where tensors of one category live if they are large enough (`poptorch.TensorLocationSettings`)."""

    on_chip: bool = True
    sharded: bool = False
    least_off_chip: int = 2
    least_sharded: int = 8192

    def is_off_chip(self, elements: int) -> bool:
        return not self.on_chip and elements >= self.least_off_chip

    def is_sharded(self, elements: int) -> bool:
        return self.sharded and elements >= self.least_sharded


@dataclass(frozen=True)
class Locations:
    activations: Location = field(default_factory=Location)
    weights: Location = field(default_factory=Location)
    optimiser: Location = field(default_factory=Location)
    accumulators: Location = field(default_factory=Location)


@dataclass(frozen=True)
class Program:
    """A program to model; `system` may have more IPUs than it uses, and each of `processes` has its own replicas.

    `io_tiles` of each IPU are reserved for host transfers, which may overlap; `prefetch_depth` micro-batches are
    prepared ahead. `groups` maps variables to parameter groups; `reserved_ipus` includes idle ones
    (`autoRoundNumIPUs`).
    """

    step: Step
    training: bool
    batching: Batching = field(default_factory=Batching)
    returns: Returns = field(default_factory=Returns)
    system: System = field(default_factory=lambda: system_named("M2000"))
    execution: Execution = Execution.PIPELINED
    settings: CostSettings = field(default_factory=CostSettings)
    optimiser: OptimiserSpec | None = None
    groups: Mapping[str, int | None] = field(default_factory=dict)
    recomputation: Recomputation = Recomputation.NONE
    locations: Locations = field(default_factory=Locations)
    io_tiles: int = 0
    overlaps_input: bool = False
    overlaps_output: bool = False
    prefetch_depth: int = 1
    synthetic_data: bool = False
    processes: int = 1
    reserved_ipus: int | None = None
    name: str = "model"

    def __post_init__(self) -> None:
        batching = self.batching
        for what, count, least in (
            ("device iterations", batching.device_iterations, 1),
            ("gradient accumulation", batching.accumulation, 1),
            ("replicas", batching.replicas, 1),
            ("processes", self.processes, 1),
            ("prefetch depth", self.prefetch_depth, 0),
            ("I/O tiles", self.io_tiles, 0),
        ):
            if count < least:
                raise Error(f"A program cannot have {count} {what}: {least} is the least.")
        tiles = self.settings.device.chip.tiles
        if self.io_tiles >= tiles:
            raise Error(
                f"{self.io_tiles} I/O tiles leave none of the {tiles} tiles to compute on. 32 to 192 are usual."
            )

    @property
    def calibration(self) -> Calibration:
        return self.settings.device.calibration

    @property
    def choices(self) -> tuple[Any, ...]:
        """All settings after the step: programs with the same step and equal choices have the same profile."""
        return tuple(getattr(self, field.name) for field in fields(self)[1:])

    @property
    def accumulates(self) -> bool:
        return self.training and self.batching.accumulation > 1

    @property
    def ipus_per_replica(self) -> int:
        """The number of IPUs of one replica: the highest IPU with an op or block, plus one."""
        return self.step.ipus[-1] + 1

    @property
    def replicas(self) -> int:
        """Replicas of all processes together."""
        return self.batching.replicas * self.processes

    @property
    def samples_per_micro_batch(self) -> int:
        """Rows of the first input that has any; 1 for models without a batch dimension."""
        return next((tensor.shape[0] for tensor in self.step.inputs if tensor.shape), 1)

    @property
    def samples_per_call(self) -> int:
        """Rows that one call of all replicas processes: micro-batch x D x A x R."""
        return self.samples_per_micro_batch * self.batching.steps * self.replicas

    def part(self, elements: int, location: Location) -> float:
        """The part of a tensor in `location` that each replica has."""
        is_split = elements > 0 and location.is_sharded(elements)
        return math.ceil(elements / self.replicas) / elements if is_split else 1.0

    def is_sharded_update(self, elements: int) -> bool:
        """Whether each replica updates a part of a variable with so many elements."""
        where = self.locations
        return any(
            self.part(elements, location) < 1 for location in (where.weights, where.optimiser, where.accumulators)
        )

    def has_variables_of(self, dtype: DType, *, trained: bool = False) -> bool:
        """Whether weights or buffers are of that type; only weights that are trained with `trained`."""
        step = self.step
        return any(step.tensors[v.tensor].dtype == dtype for v in step.variables if v.trainable or not trained)


# --- a cache of results for each step, which programs that differ only in their options share


Subject = TypeVar("Subject", bound=Step | Program)
Key = ParamSpec("Key")
Value = TypeVar("Value")
_KEPT_PER_STEP = 8
_all: list[WeakKeyDictionary[Step, Any]] = []


def forget_everything() -> None:
    """Clear all caches, after a change of the model itself, which no key covers."""
    for known in _all:
        known.clear()


def remembered(find: Callable[Concatenate[Subject, Key], Value]) -> Callable[Concatenate[Subject, Key], Value]:
    """Cache the last few results of `find` for each living step; a program's choices and other arguments are the key.

    Neither results nor keys may refer to the step. If two threads compute the same value at once, each gets its own.
    """
    known: WeakKeyDictionary[Step, tuple[tuple[object, Value], ...]] = WeakKeyDictionary()
    _all.append(known)

    @wraps(find)
    def recall(subject: Subject, /, *args: Key.args, **kwargs: Key.kwargs) -> Value:
        step, choices = (subject.step, subject.choices) if isinstance(subject, Program) else (subject, ())
        key = (*choices, *args, kwargs)
        for other, value in known.get(step, ()):
            if other == key:
                return value
        value = find(subject, *args, **kwargs)
        known[step] = (*known.get(step, ())[1 - _KEPT_PER_STEP :], (key, value))
        return value

    return recall
