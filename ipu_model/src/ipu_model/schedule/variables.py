"""What each trainable tensor and its state weigh, and what moving them off chip and between replicas takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ipu_model.capture.describe import dtype_of
from ipu_model.cost.device import Element
from ipu_model.graph import Graph
from ipu_model.lower import variable_ipus
from ipu_model.optimiser import Hyper, OptimiserSpec, weight_update
from ipu_model.per_graph import per_graph
from ipu_model.program import Location, Program
from ipu_model.schedule.traffic import stage_of_result
from ipu_model.stages import stages_of


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
    ipus, stage_of = variable_ipus(program.step), variable_stages(program.graph)
    spec = program.optimiser
    found = []
    for variable in program.graph.variables:
        elements, weight = variable.spec.elements, Element.of(dtype_of(variable.spec.dtype)).bytes
        trained = program.training and variable.name in program.graph.gradients
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


@per_graph
def variable_stages(graph: Graph) -> dict[str, int]:
    """Return the stage whose backward pass makes each variable's gradient, or the first that reads it if none does."""
    stages = stages_of(graph)
    by_name = {node.name: node for node in graph.ops.nodes}
    found: dict[str, int] = {}
    for variable in graph.variables:
        gradient = graph.gradients.get(variable.name)
        stage = None if gradient is None else stage_of_result(by_name[gradient], stages)
        if stage is None:
            readers = (stages.of_node(user) for user in by_name[variable.node].users)
            stage = min((reader for reader in readers if reader is not None), default=0)
        found[variable.name] = stage
    return found
