"""Which forward results are kept for the backward pass, and which ops run again instead."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import torch.fx

from ipu_model.capture.aliases import storage_roots
from ipu_model.graph import Graph
from ipu_model.program import Program, Recomputation
from ipu_model.stages import Stages
from ipu_model.step import Phase

Node = torch.fx.Node

_NORMS = ("native_batch_norm", "native_layer_norm", "native_group_norm", "_native_batch_norm", "cudnn_batch_norm")
_NON_LINEARITIES = ("relu", "gelu", "silu", "sigmoid", "tanh", "hardswish", "hardtanh", "leaky_relu", "elu", "clamp")
_CONTRACTIONS = ("convolution", "mm", "addmm", "bmm", "baddbmm")


@dataclass(frozen=True)
class Kept:
    """Names of the forward ops by what happens between forward and backward pass.

    Of the ops in `stored`, results that the backward pass reads (or that ops run again read) are kept from the
    forward pass; those in `again` run a second time, in graph order, before the backward ops that need them.
    Ops with several results count as one, views and in-place ops belong to the op that made the storage.
    """

    stored: frozenset[str]
    again: frozenset[str]


def kept_for_backward(program: Program, stages: Stages) -> Kept:
    """Return what is stored and what is computed again; values that enter a stage from outside are always stored."""
    if not program.training:
        return Kept(frozenset(), frozenset())
    graph = program.graph
    roots = _makers(graph)
    wanted = _wanted_by_backward(graph, roots, stages)
    recomputing = _recomputing_stages(program, stages)
    checkpoints = _checkpoints(program, roots, wanted)
    stored: set[str] = set()
    again: set[str] = set()
    pending = [node for node in graph.ops.nodes if node in wanted]
    seen: set[Node] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if stages.of_node(node) not in recomputing or node in checkpoints:
            stored.add(node.name)
            continue
        again.add(node.name)
        pending += _sources(node, roots, stages)
    return Kept(frozenset(stored), frozenset(again | _views(graph, roots, again)))


def _makers(graph: Graph) -> dict[Node, Node]:
    """Map every node to the op that made the storage its result lives in."""
    made = storage_roots(graph.ops)
    return {node: _without_item(root) for node, root in made.items()}


def _without_item(node: Node) -> Node:
    """Return the op itself for one of its several results."""
    if node.op == "call_function" and node.target is operator.getitem:
        parent = node.args[0]
        assert isinstance(parent, Node)
        return parent
    return node


def _wanted_by_backward(graph: Graph, roots: dict[Node, Node], stages: Stages) -> set[Node]:
    """Return the ops of the forward pass whose results a backward op of the same stage reads."""
    wanted: set[Node] = set()
    for node in graph.ops.nodes:
        if node.meta.get("phase") is not Phase.BACKWARD:
            continue
        for source in node.all_input_nodes:
            root = roots[source]
            if root.meta.get("phase") is Phase.FORWARD and stages.of_node(root) == stages.of_node(node):
                wanted.add(root)
    return wanted


def _recomputing_stages(program: Program, stages: Stages) -> frozenset[int]:
    """Return the stages in which something runs again; the last one of a pipeline goes on from its forward pass."""
    if program.recomputation is Recomputation.NONE:
        return frozenset()
    every = frozenset(stage.index for stage in stages)
    return every - {stages.last} if program.recomputation is Recomputation.PIPELINE else every


def _checkpoints(program: Program, roots: dict[Node, Node], wanted: set[Node]) -> set[Node]:
    """Return the ops whose results are stored although their stage recomputes."""
    ops = program.graph.ops
    chosen = {roots[node] for node in ops.nodes if node.meta.get("hints", {}).get("recomputation_checkpoint")}
    mode = program.recomputation
    if mode is Recomputation.NORM_ONLY:
        cheap = {node for node in wanted if _is(node, _NORMS) or _follows_norm(node, roots)}
        return chosen | (wanted - cheap)
    if mode is Recomputation.STANDARD and not chosen:
        # PopART chooses by liveness. Of the n places where least is alive, every square root of n-th has the same
        # order of memory and of repeated work.
        narrow = _narrow_places(program.graph, roots)
        return set(narrow[:: max(1, math.isqrt(len(narrow)))])
    return chosen


def _narrow_places(graph: Graph, roots: dict[Node, Node]) -> list[Node]:
    """Return the forward ops after which no other forward result is still needed by the forward pass.

    Where there is no such place (every result is used to the end), all contractions.
    """
    forward = [node for node in graph.ops.nodes if node.meta.get("phase") is Phase.FORWARD]
    last_use: dict[Node, int] = {}
    for position, node in enumerate(forward):
        for source in node.all_input_nodes:
            if roots[source].meta.get("phase") is Phase.FORWARD:
                last_use[roots[source]] = position
    alive: set[Node] = set()
    found: dict[Node, None] = {}
    for position, node in enumerate(forward):
        alive = {each for each in alive if last_use[each] > position}
        if last_use.get(roots[node], -1) > position:
            alive.add(roots[node])
        if len(alive) == 1:
            found.setdefault(next(iter(alive)))
    return list(found) or [node for node in forward if _is(node, _CONTRACTIONS)]


def _follows_norm(node: Node, roots: dict[Node, Node]) -> bool:
    return _is(node, _NON_LINEARITIES) and any(_is(roots[source], _NORMS) for source in node.all_input_nodes)


def _sources(node: Node, roots: dict[Node, Node], stages: Stages) -> list[Node]:
    """Return the ops of the same stage whose results `node` is computed from."""
    found = []
    for source in node.all_input_nodes:
        for each in {source, roots[source]}:
            if each.meta.get("phase") is Phase.FORWARD and stages.of_node(each) == stages.of_node(node):
                found.append(roots[each])
    return found


def _views(graph: Graph, roots: dict[Node, Node], again: set[str]) -> set[str]:
    """Return the ops in the storage of those that run again: in-place ops and views repeat with them."""
    return {
        node.name for node in graph.ops.nodes if node.meta.get("phase") is Phase.FORWARD and roots[node].name in again
    }


def _is(node: Node, names: tuple[str, ...]) -> bool:
    return node.op == "call_function" and str(node.target).split(".")[1 if "." in str(node.target) else 0] in names
