"""Turn what a recorder saw into a `Graph`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.fx

from ipu_model.capture.aliases import written_roots
from ipu_model.capture.cleanup import clean
from ipu_model.capture.recorder import Recorder
from ipu_model.capture.torch_private import FakeTensor
from ipu_model.capture.variables import Slot
from ipu_model.graph import Graph, Output, TensorSpec, Variable

if TYPE_CHECKING:
    from ipu_model.capture.step import StepResult


def assemble(recorder: Recorder, slots: list[Slot], inputs: Sequence[TensorSpec], result: StepResult) -> Graph:
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
    stand_ins = clean(recorder.graph)
    names = iter([stand_ins.get(node, node).name for node in returned])
    variables = tuple(_variables(recorder, slots))
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
        assigned=_names(written_roots(recorder.graph, statistics=False)),
        draws_random_numbers=recorder.draws_random_numbers,
        activation_gradients=_activation_gradients(recorder, result, stand_ins),
    )


def _activation_gradients(
    recorder: Recorder, result: StepResult, stand_ins: Mapping[torch.fx.Node, torch.fx.Node]
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
