"""What each trainable tensor and its state weigh, and what moving them off chip and between replicas takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ipu_model.optimiser import Hyper, OptimiserSpec, weight_update
from ipu_model.predict.device import Element
from ipu_model.predict.ops.updates import variable_ipus
from ipu_model.program import Location, Program
from ipu_model.step import Step


@dataclass(frozen=True)
class Tensor:
    """One variable: where it is used, its elements, and the bytes of weight, accumulated gradient and state.

    `state` leaves out the accumulator, unless the optimiser keeps velocity and accumulator in one tensor, which
    `accumulates_in_state` tells.
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


def tensors_of(program: Program) -> tuple[Tensor, ...]:
    """Return the variables of a program in graph order; buffers and frozen weights have no gradient."""
    step, spec = program.step, program.optimiser
    ipus, stage_of = variable_ipus(program.step), variable_stages(step)
    found = []
    for variable in step.variables:
        tensor = step.tensors[variable.tensor]
        elements, weight = tensor.elements, Element.of(tensor.dtype).bytes
        trained = program.training and variable.name in step.gradients
        gradient = float(weight)
        state, combined = 0.0, False
        if trained and spec is not None:
            state, combined = _state(spec, spec.hyper(program.groups.get(variable.name)), program.accumulates)
            gradient = float(spec.accum_dtype.bytes) if program.accumulates else gradient
        found.append(
            Tensor(
                variable.name, stage_of[variable.name], ipus[variable.name], elements, trained,
                elements * weight, elements * gradient * trained, elements * state, combined,
            )
        )  # fmt: skip
    return tuple(found)


def part(program: Program, elements: int, location: Location) -> float:
    """Return the share of a tensor that one replica holds."""
    is_split = elements > 0 and location.is_sharded(elements)
    return math.ceil(elements / program.replicas) / elements if is_split else 1.0


def is_sharded_update(program: Program, tensor: Tensor) -> bool:
    """Whether each replica updates its part of a tensor only, because it holds a part of something it needs."""
    where = program.locations
    return any(
        part(program, tensor.elements, each) < 1 for each in (where.weights, where.optimiser, where.accumulators)
    )


def updated_elements(program: Program, tensors: tuple[Tensor, ...]) -> Mapping[str, int]:
    """Return how many elements one replica updates of the tensors of which it does not update all."""
    return {
        tensor.name: math.ceil(tensor.elements / program.replicas)
        for tensor in tensors
        if tensor.trainable and is_sharded_update(program, tensor)
    }


@lru_cache(maxsize=256)
def _state(spec: OptimiserSpec, hyper: Hyper, accumulates: bool) -> tuple[float, bool]:
    """Return the bytes of state for each element, and whether gradients are accumulated in it."""
    update = weight_update(spec, hyper, accumulates=accumulates)
    return float(sum(slot.dtype.bytes for slot in update.weight_sized_state)), update.accumulates_in_state


def variable_stages(step: Step) -> dict[str, int]:
    """Return the stage whose backward pass makes each variable's gradient, or the first that reads it if none does."""
    found: dict[str, int] = {}
    for variable in step.variables:
        gradient = step.gradients.get(variable.name)
        maker = None if gradient is None else step.producer(gradient)
        readers = step.readers.get(variable.tensor, ())
        found[variable.name] = min((reader.stage for reader in readers), default=0) if maker is None else maker.stage
    return found
