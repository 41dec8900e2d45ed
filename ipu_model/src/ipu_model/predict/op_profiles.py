"""The ops of a profile: costs, operands, and what users call them, such as "bn1: batch norm, mean"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import Element, Work
from ipu_model.predict.ops import rule_of
from ipu_model.predict.ops.contractions import BIAS_GRADIENT, DATA_GRADIENT, GRADIENT_PARTS, PRODUCTS, WEIGHT_GRADIENT
from ipu_model.predict.ops.updates import ACCUMULATION_PART, UPDATE_PART, variable_costs
from ipu_model.predict.order import order_of
from ipu_model.predict.profile import OpProfile
from ipu_model.predict.program import Program
from ipu_model.predict.remembered import remembered
from ipu_model.step import Op, Source, Step, Tensor

# The operands of a convolution's backward op that each of its parts reads.
_READ_FOR_GRADIENT = {DATA_GRADIENT: (0, 2), WEIGHT_GRADIENT: (0, 1), BIAS_GRADIENT: (0,)}


def ops_of(program: Program) -> tuple[OpProfile, ...]:
    settings, sync, order = program.settings, program.settings.device.sync_cycles, order_of(program)
    costs = costs_of(program.step, settings)
    chip, half = settings.device.chip, settings.half_partials
    # The FLOPs that all tiles can do in a cycle, by the bytes of an element.
    peaks = {size: chip.peak_flops(size, half_partials=half) / chip.clock_hz for size in (2, 4)}
    peaks[1] = peaks[4]
    described = _described(program.step, tuple((op.node, op.part) for op in costs.ops))
    return tuple(
        _with_work(profile, op.work, sync)(
            node=op.node,
            target=op.target,
            part=op.part,
            phase=op.phase.value,
            stage=op.stage,
            ipu=op.ipu,
            executions=order.executions(op.node),
            is_fallback=op.is_fallback,
            peak_flops_per_cycle=peaks[element_bytes] if op.work.flops else 0.0,
            recomputations=order.micro_batches if op.node in order.kept.again else 0,
        )
        for op, (profile, element_bytes) in zip(costs.ops, described)
    )


def _with_work(profile: partial[OpProfile], work: Work, sync_cycles: float) -> partial[OpProfile]:
    return partial(
        profile,
        family=work.family,
        on_tile_execute=work.cycles.compute,
        do_exchange=work.cycles.exchange,
        internal_sync=work.cycles.phases * sync_cycles,
        temporary_bytes=work.temporary_bytes,
        flops=work.flops,
        plan=work.plan,
    )


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
            name=naming.part(node, part),
            scope=path_of(op),
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
    step, sync = program.step, program.settings.device.sync_cycles
    weights = {variable.name: step.tensors[variable.tensor] for variable in step.variables}
    executions = {ACCUMULATION_PART: program.batching.steps, UPDATE_PART: program.batching.device_iterations}
    profiles = []
    for cost in variable_costs(program):
        gradient, weight = step.tensors[step.gradients[cost.variable]], weights[cost.variable]
        maker = step.producer(gradient.name)
        profile = partial(
            OpProfile,
            node=gradient.name,
            scope=cost.variable.rpartition(".")[0],
            stage=0 if maker is None else maker.stage,
            operands=_types([gradient]),
            results=_types([weight]),
            accessed_bytes=float(_bytes(gradient) + 2 * _bytes(weight)),
        )
        profiles.append(
            _with_work(profile, cost.work, sync)(
                target=cost.part,
                part=cost.part,
                phase="update" if cost.part == UPDATE_PART else "backward",
                ipu=cost.ipu,
                executions=executions[cost.part],
                name=f"{cost.variable}: {cost.part}",
            )
        )
    return tuple(profiles)


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
