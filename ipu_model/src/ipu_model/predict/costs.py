"""What each op of a step costs: `costs_of` walks over the ops and asks the rule of each (`ipu_model.predict.ops`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ipu_model.predict import vertices
from ipu_model.predict.device import CostSettings, Cycles, Work
from ipu_model.predict.ops import rule_of
from ipu_model.predict.ops.moves import cost_view
from ipu_model.predict.ops.rule import Layout, OpView, OpWork, even_layout
from ipu_model.predict.ops.updates import VariableCost
from ipu_model.predict.remembered import remembered
from ipu_model.step import Phase, Step


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
