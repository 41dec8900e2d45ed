"""Tensors that wait between the forward and the backward pass of a stage."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch.fx

from ipu_model.capture.aliases import storage_roots
from ipu_model.graph import Graph, TensorSpec
from ipu_model.per_graph import per_graph
from ipu_model.program import Execution, Program
from ipu_model.recompute import Kept
from ipu_model.stages import Stages
from ipu_model.step import Phase

Node = torch.fx.Node


@dataclass(frozen=True)
class Held:
    """One tensor that a stage keeps for its backward pass, by the name of the node that made it."""

    stage: int
    node: str
    spec: TensorSpec


def held_tensors(program: Program, stages: Stages, kept: Kept) -> tuple[Held, ...]:
    """Return what each stage keeps of a micro-batch: stored results, and what came from the host or other stages."""
    if not program.training:
        return ()
    graph = program.graph
    found: dict[tuple[int, str], Held] = {}
    for stage, root in _read_late(graph, stages, kept):
        if (stage, root.name) not in found and _is_held(root, stage, graph, stages, kept):
            found[stage, root.name] = Held(stage, root.name, root.meta["spec"])
    return tuple(found.values())


def is_stashed(program: Program, stages: Stages, stage: int) -> bool:
    """Whether a stage keeps several micro-batches, so that what it holds is copied to and from a stash.

    In a pipeline all but the last stage do, which goes straight on to its backward pass (PopART,
    transforms/pipeline.cpp).
    """
    return program.training and program.execution is not Execution.SHARDED and stage != stages.last


@per_graph
def _storages(graph: Graph) -> dict[Node, Node]:
    return storage_roots(graph.ops)


def _read_late(graph: Graph, stages: Stages, kept: Kept) -> Iterator[tuple[int, Node]]:
    """Yield what ops of the backward pass and ops that run again read, each with the reader's stage."""
    roots = _storages(graph)
    for node in graph.ops.nodes:
        if node.meta.get("phase") is not Phase.BACKWARD and node.name not in kept.again:
            continue
        stage = stages.of_node(node)
        if stage is None:
            continue
        for source in node.all_input_nodes:
            if isinstance(roots[source].meta.get("spec"), TensorSpec):
                yield stage, roots[source]


def _is_held(root: Node, stage: int, graph: Graph, stages: Stages, kept: Kept) -> bool:
    if root.op == "placeholder":
        return root.name in graph.input_nodes
    maker = root
    if root.op == "call_function" and root.target is operator.getitem:
        parent = root.args[0]
        assert isinstance(parent, Node)
        maker = parent
    if maker.meta.get("phase") is not Phase.FORWARD:
        return False
    return maker.name in kept.stored or stages.of_node(maker) != stage
