"""Lower a step: the cost of each of its ops."""

from __future__ import annotations

from ipu_model.lower import moves
from ipu_model.lower.result import Layout, Lowered, OpCost
from ipu_model.lower.rules import all_rules, fallback
from ipu_model.lower.settings import CostSettings
from ipu_model.lower.view import OpView, Rule, even_on_tile
from ipu_model.step import Op, Step


def lower(step: Step, settings: CostSettings | None = None) -> Lowered:
    """Return the cost of every op of one micro-batch; `settings` are the defaults for `None`.

    Raises:
        Error: a hint that no device can follow, such as a memory proportion above 1.
    """
    settings = settings or CostSettings()
    layouts = {
        tensor.name: Layout(even_on_tile(tensor, settings.device), tensor.name)
        for tensor in step.tensors.values()
        if tensor.producer is None
    }
    costs: list[OpCost] = []
    for op in step.ops:
        rule = _rule(op)
        result = (rule or fallback)(OpView(op, step, settings, layouts))
        for tensor, layout in zip(op.results, result.layouts):
            if tensor is not None and layout is not None:
                layouts[tensor.name] = layout
        costs += [
            OpCost(
                node=op.name, target=op.target, part=part.name, phase=op.phase, stage=op.stage, ipu=op.ipu,
                scope=op.scope, work=part.work, is_fallback=rule is None,
            )
            for part in result.parts
        ]  # fmt: skip
    return Lowered(tuple(costs), layouts)


def _rule(op: Op) -> Rule | None:
    """Return how to cost an op: not at all if known when compiling, else by its rule, else as a view."""
    if op.is_known:
        return moves.free
    rule = all_rules().get(op.kind)
    return moves.lower_view if rule is None and op.is_view else rule
