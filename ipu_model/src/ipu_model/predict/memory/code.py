"""How much code and exchange code a tile holds.

Equal steps are outlined: their code exists once, however often they run. So code follows the number of
distinct steps of an IPU, not its depth; which micro-batch a step works on, and whether it runs again, makes
no difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ipu_model.predict.calibration import MemoryConstants
from ipu_model.predict.costs import Costs
from ipu_model.predict.device import Work
from ipu_model.predict.memory import categories
from ipu_model.predict.ops.updates import VariableCost


@dataclass(frozen=True)
class DistinctSteps:
    """The distinct steps of one IPU.

    `phases` counts exchange phases; `compute_sets` what runs on the tiles between them, at least once for
    each step; `kinds` of vertices are ops (or parts) with their element type.
    """

    phases: int
    compute_sets: int
    kinds: int


@dataclass(frozen=True)
class Crossings:
    """What crosses the borders of an IPU: tensors read or written by the host, and copies to or from other IPUs.

    `replicas` exchange the gradients of all weights in one collective.
    """

    host_tensors: int
    transfers: int
    replicas: int = 1


def distinct_steps(
    costs: Costs, ipu: int, updates: Iterable[tuple[str, tuple[int, ...], VariableCost]] = ()
) -> DistinctSteps:
    """Return the distinct steps of an IPU.

    Ops are equal if they are the same part of the same target with the same work, which shapes, types and
    plan decide on. `updates` are the kind, the shape and the cost of each step for a variable.
    """
    works: dict[object, Work] = {}
    kinds: set[object] = set()
    for op in costs.of(ipu=ipu):
        works[op.target, op.part, op.work] = op.work
        kinds.add((op.target, op.part))
    for kind, shape, cost in updates:
        if cost.ipu == ipu:
            works[kind, shape, cost.work] = cost.work
            kinds.add(kind)
    phases = [math.ceil(work.cycles.phases / work.repeats) for work in works.values()]
    return DistinctSteps(sum(phases), sum(max(1, count) for count in phases), len(kinds))


def code_bytes(steps: DistinctSteps, crossings: Crossings, constants: MemoryConstants) -> dict[str, float]:
    """Return bytes of code on each tile by category.

    Symbols of `calibration.toml`: exchange code = a x phases, control code = b x compute sets, vertex state
    = c x compute sets, vertex code = d x kinds, host exchange = e x tensors, global exchange = f x copies x
    replicas. Replicas make global exchange code grow about linearly ("Memory and Performance Optimisation on
    the IPU", table 4.1).
    """
    transfers = crossings.transfers + (1 if crossings.replicas > 1 else 0)
    return {
        categories.EXCHANGE_CODE: constants.exchange_code_bytes_per_phase * steps.phases,
        categories.CONTROL_CODE: constants.control_code_bytes_per_compute_set * steps.compute_sets,
        categories.VERTEX_STATE: constants.vertex_state_bytes_per_compute_set * steps.compute_sets,
        categories.VERTEX_CODE: constants.vertex_code_bytes_per_kind * steps.kinds,
        categories.HOST_EXCHANGE_CODE: constants.host_exchange_bytes_per_tensor * crossings.host_tensors,
        categories.GLOBAL_EXCHANGE_CODE: (
            constants.global_exchange_bytes_per_transfer * transfers * max(1, crossings.replicas)
        ),
    }
