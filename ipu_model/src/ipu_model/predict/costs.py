"""What each op of a step costs, by its rule (`ipu_model.predict.ops`); and the ops of a profile, with their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ipu_model.predict import vertices
from ipu_model.predict.device import CostSettings, Cycles, Element, Work
from ipu_model.predict.ops import rule_of
from ipu_model.predict.ops.contractions import BIAS_GRADIENT, DATA_GRADIENT, GRADIENT_PARTS, PRODUCTS, WEIGHT_GRADIENT
from ipu_model.predict.ops.moves import cost_view
from ipu_model.predict.ops.rule import Layout, OpView, OpWork, even_layout
from ipu_model.predict.ops.updates import UPDATE_PART, VariableCost, variable_costs
from ipu_model.predict.order import order_of
from ipu_model.predict.profile import OpProfile
from ipu_model.predict.program import Program, remembered
from ipu_model.step import Op, Phase, Source, Step, Tensor


@dataclass(frozen=True)
class OpCost:
    """The cost of one op of a step, or of a part of it ("" for the op itself); `is_fallback`: it has no formula."""

    node: str
    target: str
    part: str
    phase: Phase
    stage: int
    ipu: int
    scope: str
    work: Work
    is_fallback: bool = False


@dataclass(frozen=True)
class Costs:
    """The costs of one micro-batch, without what costs nothing (views, constants), and the layout of each tensor."""

    ops: tuple[OpCost, ...]
    layouts: Mapping[str, Layout]

    def of(self, *, ipu: int | None = None, phase: Phase | None = None) -> tuple[OpCost, ...]:
        return tuple(op for op in self.ops if (ipu is None or op.ipu == ipu) and (phase is None or op.phase is phase))


def total_of(costs: Iterable[OpCost | VariableCost]) -> Cycles:
    return sum((cost.work.cycles for cost in costs), Cycles())


@remembered
def costs_of(step: Step, settings: CostSettings | None = None) -> Costs:
    """Return the cost of every op of one micro-batch; `Error`: a hint that no device can follow."""
    settings = settings or CostSettings()
    entering = (tensor for tensor in step.tensors.values() if tensor.producer is None)
    layouts = {tensor.name: even_layout(tensor, settings.device) for tensor in entering}
    costs: list[OpCost] = []
    for op in step.ops:
        view, rule = OpView(op, step, settings, layouts), rule_of(op.kind)
        is_empty = not any(result is not None and result.elements for result in op.results)
        is_fallback = False
        if op.is_known or is_empty:
            work = OpWork({}, view.own_layouts())
        elif rule is not None:
            work = rule.cost(view)
        elif op.is_view:
            work = cost_view(view)
        else:
            work, is_fallback = _plain_code(view), True
        for tensor, layout in zip(op.results, work.layouts):
            if tensor is not None and layout is not None:
                layouts[tensor.name] = layout
        costs += [
            OpCost(op.name, op.target, part, op.phase, op.stage, op.ipu, op.scope, part_work, is_fallback)
            for part, part_work in work.parts.items()
        ]
    return Costs(tuple(costs), layouts)


def _plain_code(op: OpView) -> OpWork:
    """Cost an op without a formula: assume that all inputs come from other tiles and pass through plain code."""
    inputs = list(op.operands())
    received = sum(op.spread(operand.tensor) * operand.element.bytes for operand in inputs)
    outputs = [output for output in op.outputs if output is not None]
    n = max(op.spread(tensor) for tensor in (*outputs, *(operand.tensor for operand in inputs)))
    compute = vertices.elementwise(op.device, n, op.element, ("plain",), vertices.BINARY)
    cycles = Cycles(compute=compute) + op.device.exchange(received)
    return op.takes(Work("fallback", cycles, temporary_bytes=received))


# --- the ops of a profile: costs, operands, and what users call them, such as "bn1: batch norm, mean"


# The operands of a convolution's backward op that each of its parts reads.
_READ_FOR_GRADIENT = {DATA_GRADIENT: (0, 2), WEIGHT_GRADIENT: (0, 1), BIAS_GRADIENT: (0,)}


def ops_of(program: Program) -> tuple[OpProfile, ...]:
    settings, order = program.settings, order_of(program)
    costs, chip, half = costs_of(program.step, settings), settings.device.chip, settings.half_partials
    # The FLOPs that all tiles can do in a cycle, by the bytes of an element.
    peaks = {size: chip.peak_flops(size, half_partials=half) / chip.clock_hz for size in (2, 4)}
    peaks[1] = peaks[4]
    described = _described(program.step, tuple((op.node, op.part) for op in costs.ops))
    return tuple(
        profile(
            **_cost_in_profile(op.work, program),
            executions=order.executions(op.node),
            is_fallback=op.is_fallback,
            peak_flops_per_cycle=peaks[element_bytes] if op.work.flops else 0.0,
            recomputations=order.micro_batches if op.node in order.kept.again else 0,
        )
        for op, (profile, element_bytes) in zip(costs.ops, described)
    )


def _cost_in_profile(work: Work, program: Program) -> dict[str, Any]:
    return {
        "family": work.family,
        "on_tile_execute": work.cycles.compute,
        "do_exchange": work.cycles.exchange,
        "internal_sync": work.cycles.phases * program.settings.device.sync_cycles,
        "temporary_bytes": work.temporary_bytes,
        "flops": work.flops,
        "plan": work.plan,
    }


@remembered
def _described(step: Step, parts: tuple[tuple[str, str], ...]) -> tuple[tuple[partial[OpProfile], int], ...]:
    """Return profiles of parts of ops, but for what they cost, and the bytes of an element of their operands."""
    naming = naming_of(step)
    profiles = []
    for node, part in parts:
        op = step.by_name[node]
        operands, results = step.read_by(op), tuple(result for result in op.results if result is not None)
        if part in GRADIENT_PARTS and len(op.results) == len(GRADIENT_PARTS) and len(operands) > 2:
            # Of the gradients of a convolution, each part makes one.
            operands = tuple(operands[place] for place in _READ_FOR_GRADIENT[part])
            results = tuple(made for made in (op.results[GRADIENT_PARTS.index(part)],) if made is not None)
        element = Element.of(operands[0].dtype) if operands else Element.FLOAT
        profile = partial(
            OpProfile,
            node=node,
            target=op.target,
            part=part,
            scope=path_of(op),
            phase=op.phase.value,
            stage=op.stage,
            ipu=op.ipu,
            name=naming.part(node, part),
            operands=_types(operands),
            results=_types(results),
            line=op.line,
            accessed_bytes=float(sum(map(_bytes, (*operands, *results)))),
        )
        profiles.append((profile, element.bytes))
    return tuple(profiles)


def _bytes(tensor: Tensor) -> int:
    return tensor.stored * Element.of(tensor.dtype).bytes


def _types(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    return tuple(f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors)


def updates_of(program: Program) -> tuple[OpProfile, ...]:
    described, batching, profiles = _described_updates(program.step), program.batching, []
    for cost in variable_costs(program):
        is_update = cost.part == UPDATE_PART
        profile = described[cost.variable](
            **_cost_in_profile(cost.work, program),
            target=cost.part,
            part=cost.part,
            phase="update" if is_update else "backward",
            ipu=cost.ipu,
            executions=batching.device_iterations if is_update else batching.steps,
            name=f"{cost.variable}: {cost.part}",
        )
        profiles.append(profile)
    return tuple(profiles)


@remembered
def _described_updates(step: Step) -> dict[str, partial[OpProfile]]:
    """Return the profile of what accumulates and updates each variable, but for which of both it is and its cost."""
    described = {}
    for variable in step.variables:
        if variable.name in step.gradients:
            gradient, weight = step.tensors[step.gradients[variable.name]], step.tensors[variable.tensor]
            maker = step.producer(gradient.name)
            described[variable.name] = partial(
                OpProfile,
                node=gradient.name,
                scope=variable.name.rpartition(".")[0],
                stage=0 if maker is None else maker.stage,
                operands=_types([gradient]),
                results=_types([weight]),
                accessed_bytes=float(_bytes(gradient) + 2 * _bytes(weight)),
            )
    return described


@dataclass(frozen=True)
class Naming:
    ops: Mapping[str, str]
    tensors: Mapping[str, str]

    def part(self, node: str, part: str) -> str:
        """Return the name of one part of an op ("data gradient", "bias"), of the op itself if `part` is empty."""
        name = self.ops.get(node, node)
        if not part:
            return name
        scope, colon, what = name.rpartition(": ")
        return f"{scope}{colon}{part}" if part in GRADIENT_PARTS else f"{scope}{colon}{what}, {part}"


def path_of(op: Op) -> str:
    """Return the path of an op: its module, with the program's own name scopes where they were entered."""
    if not op.name_scopes:
        return op.scope
    parts = [part for part in op.scope.split(".") if part]
    for shift, (depth, name) in enumerate(op.name_scopes):
        parts.insert(depth + shift, name)
    return ".".join(parts)


@remembered
def naming_of(step: Step) -> Naming:
    gradient_of = _makers_of_gradients(step)
    ops = {}
    for op in step.ops:
        path, what = path_of(op), _what(op, step, gradient_of)
        ops[op.name] = f"{path}: {what}" if path else what
    tensors = {name: _tensor(tensor, step, ops) for name, tensor in step.tensors.items()}
    return Naming(ops, {**tensors, **{variable.tensor: variable.name for variable in step.variables}})


def _what(op: Op, step: Step, gradient_of: Mapping[str, str]) -> str:
    rule = rule_of(op.kind)
    words = rule.words.get(op.kind, "") if rule is not None else ""
    if not words:  # `_embedding_bag_backward` is "embedding bag backward"
        words = op.kind.strip("_").removeprefix("native_").removesuffix("_default").replace("_", " ")
    if not op.is_backward or words.endswith(" backward"):
        return words
    if op.name in gradient_of:
        return gradient_of[op.name]
    if op.kind in PRODUCTS and any(tensor.of_weight for tensor in step.read_by(op)):
        return DATA_GRADIENT
    return f"backward {words}"


def _makers_of_gradients(step: Step) -> dict[str, str]:
    """Map the ops that make gradients of weights, or sums and casts of them, to what that is."""
    dimensions = {variable.name: len(step.tensors[variable.tensor].shape) for variable in step.variables}
    makers: dict[str, str] = {}
    for variable, gradient in step.gradients.items():
        pending, seen = [gradient], set[str]()
        while pending:
            op = step.producer(pending.pop())
            if op is None or not op.is_backward or op.name in seen:
                continue
            seen.add(op.name)
            if not op.is_view and not op.kind.endswith("_backward"):
                makers.setdefault(op.name, BIAS_GRADIENT if dimensions.get(variable) == 1 else WEIGHT_GRADIENT)
            if op.is_view or op.kind in ("_to_copy", "clone") or (op.kind == "add" and len(op.reads) > 1):
                pending += [tensor.name for tensor in step.read_by(op)]
    return makers


def _tensor(tensor: Tensor, step: Step, ops: Mapping[str, str]) -> str:
    op = step.producer(tensor.name)
    if op is None:
        source, name = step.source(tensor.name), tensor.name.replace("_", " ")
        return {Source.SEED: "gradient of the loss", Source.CONSTANT: f"constant {name}"}.get(source, name)
    name = ops[op.name]
    if op.kind.endswith("convolution_backward"):
        scope, colon, _ = name.rpartition(": ")
        return f"{scope}{colon}{GRADIENT_PARTS[min(tensor.index, 2)]}"
    rule = rule_of(op.kind)
    further = (rule.further_results if rule is not None else ())[tensor.index - 1 : tensor.index]
    return f"{name}, {''.join(further) or f'result {tensor.index + 1}'}" if tensor.index else name
