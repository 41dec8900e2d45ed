"""Turn what a recorder saw into a `Graph`, without what tracing leaves behind: identities, dead ops and counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.aliases import storage_roots, written_arguments, written_roots
from ipu_model.capture.graph import Graph, Output, TensorSpec, Variable
from ipu_model.capture.recorder import Recorder
from ipu_model.capture.torch_private import FakeTensor
from ipu_model.capture.variables import Slot

Node = torch.fx.Node

_IDENTITIES = frozenset(
    {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default}
)


class Traced:
    """What tracing a step left: output leaves, the loss and the gradients, all fake tensors."""

    def __init__(self, leaves: list[Any], rebuild: Callable[[list[Any]], Any]) -> None:
        self.leaves = leaves
        self.rebuild = rebuild
        self.loss: Tensor | None = None
        self.seed: Tensor | None = None
        self.gradients: list[Tensor | None] = []
        self.activation_gradients: list[tuple[Tensor, Tensor]] = []


def assemble(recorder: Recorder, slots: list[Slot], inputs: Sequence[TensorSpec], result: Traced) -> Graph:
    """Close the recorded graph with its outputs and gradients, clean it up and describe it."""
    weights = [slot for slot in slots if slot.trainable and not slot.is_constant]
    gradients = {
        slot.names[0]: recorder.node_for(gradient)
        for slot, gradient in zip(weights, result.gradients)
        if gradient is not None
    }
    returned = [recorder.node_for(leaf) for leaf in result.leaves if isinstance(leaf, FakeTensor)]
    loss = recorder.node_for(result.loss) if result.loss is not None else None
    recorder.graph.output((tuple(returned), tuple(gradients.values())))
    stand_ins = clean(recorder.graph, loss)
    names = iter([stand_ins.get(node, node).name for node in returned])
    variables = tuple(_variables(recorder, slots))
    assigned = _names(written_roots(recorder.graph, statistics=False))
    frozen = [slot for slot in slots if slot.is_constant]
    return Graph(
        ops=recorder.graph,
        constants={name: recorder.constants[name] for name in _used_constants(recorder)},
        variables=variables,
        inputs=tuple(inputs),
        input_nodes=tuple(f"input_{number}" for number in range(len(inputs))),
        outputs=tuple(_output(leaf, names) for leaf in result.leaves),
        rebuild_outputs=result.rebuild,
        gradients={name: stand_ins.get(node, node).name for name, node in gradients.items()},
        loss=None if loss is None else stand_ins.get(loss, loss).name,
        loss_spec=TensorSpec.of(result.loss) if result.loss is not None else None,
        block_entries=tuple(recorder.trace.block_entries),
        mutated=_names(written_roots(recorder.graph)),
        assigned=assigned,
        forgotten=tuple(slot.names[0] for slot in frozen if recorder.constant_for(slot.tensor) in assigned),
        draws_random_numbers=recorder.draws_random_numbers,
        activation_gradients=_activation_gradients(recorder, result, stand_ins),
        layers=recorder.trace.layers,
    )


def _activation_gradients(
    recorder: Recorder, result: Traced, stand_ins: Mapping[torch.fx.Node, torch.fx.Node]
) -> dict[str, str]:
    """Map forward nodes to the nodes of their gradients, where clean-up has left both."""
    left = set(recorder.graph.nodes)
    found: dict[str, str] = {}
    for activation, gradient in result.activation_gradients:
        pair = [recorder.trace.node_of(tensor) for tensor in (activation, gradient)]
        nodes = [stand_ins.get(node, node) for node in pair if node is not None]
        if len(nodes) == 2 and left.issuperset(nodes):
            found.setdefault(nodes[0].name, nodes[1].name)
    return found


def _names(roots: Iterable[torch.fx.Node]) -> frozenset[str]:
    """Name the variables, inputs and constants among `roots`."""
    return frozenset(node.name for node in roots if node.op in ("placeholder", "get_attr"))


def _used_constants(recorder: Recorder) -> list[str]:
    return [str(node.target) for node in recorder.graph.nodes if node.op == "get_attr"]


def _output(leaf: Any, names: Iterator[str]) -> Output:
    """Describe one result; `names` yields the nodes of those that are tensors."""
    if isinstance(leaf, FakeTensor):
        return Output(next(names), TensorSpec.of(leaf))
    return Output(None, None, leaf)


def _variables(recorder: Recorder, slots: list[Slot]) -> list[Variable]:
    return [
        Variable(slot.names[0], slot.names, slot.spec, slot.trainable, slot.is_buffer, f"variable_{number}")
        for number, slot in enumerate(slots)
        if not slot.is_constant
    ]


def clean(graph: torch.fx.Graph, loss: Node | None = None) -> dict[Node, Node]:
    """Simplify `graph` in place without changing what a replay returns or leaves in variables.

    `loss` stays even if nothing uses it. Returns the node that stands in for each one that was erased because it only
    repeated another.
    """
    stand_ins = _skip_identities(graph, _needed(graph, loss))
    kept = None if loss is None else stand_ins.get(loss, loss)
    _drop_dead(graph, kept)
    _drop_dead_counters(graph)
    _drop_dead(graph, kept)
    graph.lint()
    return stand_ins


def _needed(graph: torch.fx.Graph, loss: Node | None) -> set[Node]:
    """Return the nodes on which results, the loss or what is written depend."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node is loss or node.op == "output" or written_arguments(node) or not found.isdisjoint(node.users):
            found.add(node)
    return found


def _skip_identities(graph: torch.fx.Graph, needed: set[Node]) -> dict[Node, Node]:
    stand_ins: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _IDENTITIES:
            source = node.args[0]
            assert isinstance(source, Node)
            if node in needed:
                _keep_hints(node, source)
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            stand_ins[node] = source
    return stand_ins


def _keep_hints(node: Node, source: Node) -> None:
    if "hints" in node.meta:
        source.meta.setdefault("hints", {}).update(node.meta["hints"])


def _drop_dead(graph: torch.fx.Graph, kept: Node | None) -> None:
    def stays(node: Node) -> bool:
        return node is kept or node.op in ("placeholder", "output") or bool(written_arguments(node))

    graph.eliminate_dead_code(stays)


def _drop_dead_counters(graph: torch.fx.Graph) -> None:
    """Erase in-place updates of constants that nothing reads, such as BatchNorm's `num_batches_tracked`."""
    roots = storage_roots(graph)
    members: dict[Node, list[Node]] = {}
    for node, root in roots.items():
        members.setdefault(root, []).append(node)
    for root, nodes in members.items():
        if root.op == "get_attr" and _only_updates_itself(root, nodes):
            for node in reversed(nodes):
                graph.erase_node(node)


def _only_updates_itself(root: Node, nodes: list[Node]) -> bool:
    inside = set(nodes)
    return all(user in inside for node in nodes for user in node.users)
