"""Lower a captured graph: the cost of each of its ops."""

from __future__ import annotations

import operator

from ipu_model.capture.aliases import is_view
from ipu_model.cost.device import Element
from ipu_model.graph import Graph, TensorSpec
from ipu_model.lower import moves
from ipu_model.lower.origins import Origins
from ipu_model.lower.result import Layout, Lowered, OpCost
from ipu_model.lower.rules import all_rules, fallback
from ipu_model.lower.settings import CostSettings
from ipu_model.lower.view import Node, OpView, Result, Rule, aten_name


def lower(graph: Graph, settings: CostSettings | None = None) -> Lowered:
    """Return the cost of every op of one micro-batch; `settings` are the defaults for `None`.

    Raises:
        Error: a hint that no device can follow, such as a memory proportion above 1.
    """
    settings = settings or CostSettings()
    origins = Origins(graph)
    layouts: dict[Node, tuple[Layout | None, ...]] = {}
    costs: list[OpCost] = []
    for node in graph.ops.nodes:
        if node.op in ("placeholder", "get_attr"):
            layouts[node] = (_entering(node, settings),)
        elif node.op == "call_function" and node.target is operator.getitem:
            layouts[node] = (_item(node, layouts),)
        elif node.op == "call_function":
            view = OpView(node, settings, layouts, origins)
            rule = _rule(view)
            result = (rule or fallback)(view)
            layouts[node] = result.layouts
            costs += _costs(node, result, is_fallback=rule is None)
    lying = {node.name: found[0] for node, found in layouts.items() if found and found[0] is not None}
    return Lowered(tuple(costs), lying)


def _entering(node: Node, settings: CostSettings) -> Layout | None:
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec):
        return None
    return Layout(float(settings.device.spread(spec.elements, Element.of(spec.dtype))), node.name)


def _item(node: Node, layouts: dict[Node, tuple[Layout | None, ...]]) -> Layout | None:
    source, index = node.args
    assert isinstance(source, Node)
    assert isinstance(index, int)
    return layouts[source][index]


def _rule(view: OpView) -> Rule | None:
    """Return how to cost an op: not at all if known when compiling, else by its rule, else as a view."""
    if view.node in view.origins.constants:
        return moves.free
    rule = all_rules().get(aten_name(view.node))
    if rule is None and is_view(view.node):
        return moves.lower_view
    return rule


def _costs(node: Node, result: Result, *, is_fallback: bool) -> list[OpCost]:
    return [
        OpCost(
            node=node.name, target=str(node.target), part=part.name, phase=node.meta["phase"],
            placement=node.meta["placement"], scope=node.meta["scope"], work=part.work,
            is_fallback=is_fallback,
        )
        for part in result.parts
    ]  # fmt: skip
