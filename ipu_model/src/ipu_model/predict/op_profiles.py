"""The ops of a profile: what each costs, what it works on, and where in the program it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.predict.costs import Costs
from ipu_model.predict.device import CostSettings, Element
from ipu_model.predict.kinds import BIAS_GRADIENT, DATA_GRADIENT, GRADIENT_PARTS, WEIGHT_GRADIENT
from ipu_model.predict.naming import naming_of, path_of, type_of
from ipu_model.predict.ops.updates import (
    ACCUMULATION_PART,
    UPDATE_PART,
    VariableCost,
    accumulation_costs,
    update_costs,
)
from ipu_model.predict.order import Order
from ipu_model.predict.profile import OpProfile
from ipu_model.predict.program import Program
from ipu_model.predict.remembered import remembered
from ipu_model.step import Op, Step, Tensor

# The operands of a convolution's backward op that each of its parts reads.
_READ_FOR_GRADIENT = {DATA_GRADIENT: (0, 2), WEIGHT_GRADIENT: (0, 1), BIAS_GRADIENT: (0,)}


@dataclass(frozen=True)
class _Facts:
    """What a profile says of one part of an op besides its cost."""

    name: str
    scope: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    line: str
    accessed_bytes: float
    element_bytes: int


def ops_of(program: Program, costs: Costs, order: Order) -> tuple[OpProfile, ...]:
    """Return the ops of the passes, in the order in which the program computes them."""
    settings, again = program.settings, order.kept.again
    sync, peaks = settings.device.sync_cycles, _peaks(settings)
    facts = _facts(program.step, tuple((op.node, op.part) for op in costs.ops))
    return tuple(
        OpProfile(
            node=op.node, target=op.target, part=op.part, scope=known.scope, phase=op.phase.value,
            stage=op.stage, ipu=op.ipu, family=op.family,
            on_tile_execute=op.work.cycles.compute, do_exchange=op.work.cycles.exchange,
            internal_sync=op.work.cycles.phases * sync, temporary_bytes=op.work.temporary_bytes,
            flops=op.work.flops, executions=order.executions(op.node), plan=op.work.plan,
            is_fallback=op.is_fallback, name=known.name, operands=known.operands, results=known.results,
            line=known.line, accessed_bytes=known.accessed_bytes,
            peak_flops_per_cycle=peaks[known.element_bytes] if op.work.flops else 0.0,
            recomputations=order.micro_batches if op.node in again else 0,
        )
        for op, known in zip(costs.ops, facts)
    )  # fmt: skip


def _peaks(settings: CostSettings) -> dict[int, float]:
    """Return the FLOPs that all tiles can do in a cycle, by the bytes of an element."""
    chip = settings.device.chip
    peaks = {size: chip.peak_flops(size, half_partials=settings.half_partials) / chip.clock_hz for size in (2, 4)}
    return {1: peaks[4], **peaks}


@remembered
def _facts(step: Step, parts: tuple[tuple[str, str], ...]) -> tuple[_Facts, ...]:
    """Return what is known of each part of an op."""
    naming = naming_of(step)
    found = []
    for node, part in parts:
        op = step.by_name[node]
        operands, results = _worked_on(op, part, step)
        element = Element.of(operands[0].dtype) if operands else Element.FLOAT
        found.append(
            _Facts(
                naming.part(node, part), path_of(op), tuple(map(type_of, operands)), tuple(map(type_of, results)),
                op.line, float(sum(map(_bytes, (*operands, *results)))), element.bytes,
            )
        )  # fmt: skip
    return tuple(found)


def _worked_on(op: Op, part: str, step: Step) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return what one part of an op reads and makes: of the gradients of a convolution each part makes one."""
    operands, results = step.read_by(op), tuple(each for each in op.results if each is not None)
    if part in GRADIENT_PARTS and len(op.results) == len(GRADIENT_PARTS) and len(operands) > 2:
        made = op.results[GRADIENT_PARTS.index(part)]
        read = tuple(operands[place] for place in _READ_FOR_GRADIENT[part])
        return read, () if made is None else (made,)
    return operands, results


def _bytes(tensor: Tensor) -> int:
    return tensor.stored * Element.of(tensor.dtype).bytes


def updates_of(program: Program) -> tuple[OpProfile, ...]:
    """Return what adds gradients up and updates weights, as far as it runs on the tiles; empty for inference.

    Every variable's share counts in full here, also if replicas share the work.
    """
    if not program.training:
        return ()
    step, settings, spec, batching = program.step, program.settings, program.optimiser, program.batching
    sync, facts = settings.device.sync_cycles, _facts_of_variables(step)
    found: list[OpProfile] = []
    if program.accumulates:
        each = accumulation_costs(step, settings, spec.accum_dtype if spec is not None else None)
        found += [_update(cost, facts[cost.variable], ACCUMULATION_PART, batching.steps, sync) for cost in each]
    if spec is not None:
        each = update_costs(step, settings, spec, accumulates=program.accumulates, group_of=program.groups)
        found += [_update(cost, facts[cost.variable], UPDATE_PART, batching.device_iterations, sync) for cost in each]
    return tuple(found)


@dataclass(frozen=True)
class _Updated:
    """What a profile says of a variable: its gradient, and the stage that makes it."""

    gradient: str
    stage: int
    scope: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    accessed_bytes: float


@remembered
def _facts_of_variables(step: Step) -> dict[str, _Updated]:
    tensors = {variable.name: step.tensors[variable.tensor] for variable in step.variables}
    found = {}
    for name, gradient in step.gradients.items():
        if name in tensors:
            made_by, read, changed = step.producer(gradient), step.tensors[gradient], tensors[name]
            found[name] = _Updated(
                gradient, 0 if made_by is None else made_by.stage, name.rpartition(".")[0], (type_of(read),),
                (type_of(changed),), float(_bytes(read) + 2 * _bytes(changed)),
            )  # fmt: skip
    return found


def _update(cost: VariableCost, facts: _Updated, part: str, executions: int, sync: float) -> OpProfile:
    work = cost.work
    return OpProfile(
        node=facts.gradient, target=part, part=part, scope=facts.scope,
        phase="update" if part == UPDATE_PART else "backward", stage=facts.stage, ipu=cost.ipu, family=work.family,
        on_tile_execute=work.cycles.compute, do_exchange=work.cycles.exchange,
        internal_sync=work.cycles.phases * sync, temporary_bytes=work.temporary_bytes, flops=0, executions=executions,
        plan=work.plan, name=f"{cost.variable}: {part}", operands=facts.operands, results=facts.results,
        accessed_bytes=facts.accessed_bytes,
    )  # fmt: skip
