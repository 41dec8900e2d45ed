"""Bytes that one micro-batch moves: from the host, to the host, and between neighbouring stages."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch.fx

from ipu_model.capture.describe import dtype_of
from ipu_model.cost.device import Element
from ipu_model.graph import Graph, TensorSpec
from ipu_model.per_graph import per_graph
from ipu_model.stages import Stages, stages_of

Node = torch.fx.Node


@dataclass(frozen=True)
class Traffic:
    """Bytes of one micro-batch by stage: read from and written to the host, sent on and sent back.

    `on[k]` goes from stage k to k + 1, `back[k]` from stage k to k - 1. What a later stage needs passes through all
    stages between.
    """

    inputs: tuple[float, ...]
    outputs: tuple[float, ...]
    on: tuple[float, ...]
    back: tuple[float, ...]


@per_graph
def traffic_of(graph: Graph) -> Traffic:
    """Return the bytes that a micro-batch of `graph` moves; 64-bit elements travel as 32-bit ones."""
    stages = stages_of(graph)
    count = len(stages)
    inputs, outputs, on, back = ([0.0] * count for _ in range(4))
    entering = input_stages(graph, stages)
    by_name = {node.name: node for node in graph.ops.nodes}
    for name, spec in zip(graph.input_nodes, graph.inputs):
        if name in entering:
            inputs[entering[name]] += device_bytes(spec)
    for output in graph.outputs:
        if output.node is not None and output.spec is not None:
            outputs[stage_of_result(by_name[output.node], stages) or 0] += device_bytes(output.spec)
    for node, source, target in _crossings(graph, stages, entering):
        size = device_bytes(node.meta["spec"])
        for stage in range(source, target):
            on[stage] += size
        for stage in range(source, target, -1):
            back[stage] += size
    return Traffic(tuple(inputs), tuple(outputs), tuple(on), tuple(back))


def input_stages(graph: Graph, stages: Stages) -> dict[str, int]:
    """Return the stage that first reads each input, by node name; inputs that nothing reads are not sent."""
    found: dict[str, int] = {}
    names = set(graph.input_nodes)
    for node in graph.ops.nodes:
        if node.name in names:
            reading = [stage for user in node.users if (stage := stages.of_node(user)) is not None]
            if reading:
                found[node.name] = min(reading)
    return found


def device_bytes(spec: TensorSpec) -> int:
    """Return the bytes of a tensor as the device holds it."""
    return spec.elements * Element.of(dtype_of(spec.dtype)).bytes


def stage_of_result(node: Node, stages: Stages) -> int | None:
    """Return the stage that makes a result; one of several results belongs to the op that made them."""
    found = stages.of_node(node)
    if found is None and node.op == "call_function" and node.target is operator.getitem:
        parent = node.args[0]
        assert isinstance(parent, Node)
        return stages.of_node(parent)
    return found


def _crossings(graph: Graph, stages: Stages, entering: dict[str, int]) -> Iterator[tuple[Node, int, int]]:
    """Yield every tensor that stages other than its own read, its stage, and the farthest reader on either side."""
    if len(stages) == 1:
        return
    for node in graph.ops.nodes:
        if not isinstance(node.meta.get("spec"), TensorSpec) or node.op == "get_attr":
            continue
        own = entering.get(node.name) if node.op == "placeholder" else stage_of_result(node, stages)
        if own is None:
            continue
        reading = {stage for user in node.users if (stage := stages.of_node(user)) is not None}
        if reading and max(reading) > own:
            yield node, own, max(reading)
        if reading and min(reading) < own:
            yield node, own, min(reading)
