"""Turn what a recorder saw into a `Graph` without identities, dead ops and counters; title prints, add results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.graph import (
    Graph,
    Marks,
    Output,
    TensorSpec,
    info_of,
    mark,
    set_info,
    spec_of,
    storage_roots,
    written_arguments,
)
from ipu_model.capture.recorder import Recorder
from ipu_model.capture.torch_private import FakeTensor
from ipu_model.capture.variables import Slot
from ipu_model.step import Phase, Variable

Node = torch.fx.Node

_IDENTITIES = frozenset(
    {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default}
)


@dataclass
class Traced:
    """What tracing a step left: output leaves, the loss and the gradients, all fake tensors."""

    leaves: list[Any]
    rebuild: Callable[[list[Any]], Any]
    loss: Tensor | None = None
    gradients: Sequence[Tensor | None] = ()
    activation_gradients: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def assemble(recorder: Recorder, slots: list[Slot], inputs: Sequence[TensorSpec], result: Traced) -> Graph:
    weights = [slot.names[0] for slot in slots if slot.trainable and not slot.is_constant]
    gradients = {
        name: recorder.node_for(gradient) for name, gradient in zip(weights, result.gradients) if gradient is not None
    }
    returned = [recorder.node_for(leaf) for leaf in result.leaves if isinstance(leaf, FakeTensor)]
    loss = recorder.node_for(result.loss) if result.loss is not None else None
    recorder.graph.output((tuple(returned), tuple(gradients.values())))
    stand_ins = clean(recorder.graph, loss)
    names = iter([stand_ins.get(node, node).name for node in returned])
    used = [str(node.target) for node in recorder.graph.nodes if node.op == "get_attr"]
    frozen = {recorder.constant_for(slot.tensor): slot.names[0] for slot in slots if slot.is_constant}
    return Graph(
        ops=recorder.graph,
        constants={name: recorder.constants[name] for name in used},
        variables=tuple(
            Variable(slot.names[0], slot.names, f"variable_{number}", slot.trainable, slot.is_buffer)
            for number, slot in enumerate(slots)
            if not slot.is_constant
        ),
        inputs=tuple(inputs),
        input_nodes=tuple(f"input_{number}" for number in range(len(inputs))),
        outputs=tuple(
            Output(next(names), TensorSpec.of(leaf)) if isinstance(leaf, FakeTensor) else Output(None, None, leaf)
            for leaf in result.leaves
        ),
        rebuild_outputs=result.rebuild,
        gradients={name: stand_ins.get(node, node).name for name, node in gradients.items()},
        loss=None if loss is None else stand_ins.get(loss, loss).name,
        loss_spec=TensorSpec.of(result.loss) if result.loss is not None else None,
        block_entries=tuple(recorder.trace.block_entries),
        frozen={constant: name for constant, name in frozen.items() if constant is not None},
        draws_random_numbers=recorder.draws_random_numbers,
        activation_gradients=_activation_gradients(recorder, result, stand_ins),
        layers=recorder.trace.layers,
    )


def _activation_gradients(recorder: Recorder, result: Traced, stand_ins: Mapping[Node, Node]) -> dict[str, str]:
    """Map forward nodes to the nodes of their gradients, where clean-up has left both."""
    left = set(recorder.graph.nodes)
    names: dict[str, str] = {}
    for pair in result.activation_gradients:
        nodes = [stand_ins.get(node, node) for node in map(recorder.trace.node_of, pair) if node is not None]
        if len(nodes) == 2 and left.issuperset(nodes):
            names.setdefault(nodes[0].name, nodes[1].name)
    return names


def clean(graph: torch.fx.Graph, loss: Node | None = None) -> dict[Node, Node]:
    """Simplify `graph` in place, but for `loss`; return what stands in for each erased node that repeated another."""
    stand_ins = _skip_identities(graph, loss)
    kept = None if loss is None else stand_ins.get(loss, loss)
    _drop_dead(graph, kept)
    _drop_dead_counters(graph)
    _drop_dead(graph, kept)
    graph.lint()
    return stand_ins


def _skip_identities(graph: torch.fx.Graph, loss: Node | None) -> dict[Node, Node]:
    needed: set[Node] = set()  # results, the loss or what is written depend on these: their marks count
    for node in reversed(graph.nodes):
        if node is loss or node.op == "output" or written_arguments(node) or not needed.isdisjoint(node.users):
            needed.add(node)
    stand_ins: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _IDENTITIES:
            source = node.args[0]
            assert isinstance(source, Node)
            marks = vars(info_of(node).marks)
            own = {name: value for name, value in marks.items() if value is not None and value is not False}
            if node in needed and own:
                mark(source, **own)
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            stand_ins[node] = source
    return stand_ins


def _drop_dead(graph: torch.fx.Graph, kept: Node | None) -> None:
    def stays(node: Node) -> bool:
        return node is kept or node.op in ("placeholder", "output") or bool(written_arguments(node))

    graph.eliminate_dead_code(stays)


def _drop_dead_counters(graph: torch.fx.Graph) -> None:
    """Erase in-place updates of constants that nothing reads, such as BatchNorm's `num_batches_tracked`."""
    members: dict[Node, list[Node]] = {}
    for node, root in storage_roots(graph).items():
        members.setdefault(root, []).append(node)
    for root, nodes in members.items():
        if root.op == "get_attr" and all(user in nodes for node in nodes for user in node.users):
            for node in reversed(nodes):
                graph.erase_node(node)


def title_prints(graph: Graph, title_of: Callable[[str, bool], str]) -> None:
    """Give the prints of a graph that have no title one: `title_of(tensor, is_gradient)` of what is printed."""
    for node in graph.ops.nodes:
        printed = info_of(node).marks.printed
        if printed is not None and not printed.title:
            of = node if printed.gradient_of is None else graph.by_name.get(printed.gradient_of, node)
            title = title_of(of.all_input_nodes[0].name, of is not node)
            mark(node, printed=replace(printed, title=title))


def with_results(graph: Graph, wanted: Sequence[str]) -> Graph:
    """Return the graph with these tensors, as they are when they are computed, as anchored outputs after forward's."""
    ops = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    results: Any = ops.graph_copy(graph.ops, copies)
    returned, gradients = results
    sources = [graph.by_name[name] for name in wanted]
    kept = [_kept(ops, copies[node], overwritten=graph.roots[node] in graph.written) for node in sources]
    ops.output(((*returned, *kept), tuple(gradients)))
    ops.lint()
    anchored = tuple(Output(node.name, spec_of(node), anchored=True) for node in kept)
    return replace(graph, ops=ops, outputs=(*graph.outputs, *anchored))


def _kept(ops: torch.fx.Graph, node: Node, *, overwritten: bool) -> Node:
    """Return a node with the value that `node` has when it is computed: a copy if something changes it later."""
    if not overwritten:
        return node
    first = next(op for op in ops.nodes if op.op == "call_function")
    info = info_of(node)
    with ops.inserting_after(node) if node.op == "call_function" else ops.inserting_before(first):
        copy = ops.call_function(torch.ops.aten.clone.default, (node,))
    if info.placement is None:  # a variable or input has no place of its own: its copy goes with the first op
        place = info_of(first)
        info = replace(info, phase=Phase.FORWARD, placement=place.placement, scope=place.scope)
    set_info(copy, replace(info, marks=Marks(is_nop=True, is_anchor=True)))
    return copy
