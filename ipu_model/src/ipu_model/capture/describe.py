"""Describe a captured graph as a `Step`: everything that the performance model reads, resolved once."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from dataclasses import fields, replace
from weakref import WeakKeyDictionary

import torch
import torch.fx

from ipu_model.capture.graph import SHAPE_ONLY, Graph, dtype_of, info_of, is_random, is_view, op_of, written_arguments
from ipu_model.capture.operators import kind_of
from ipu_model.process import no_garbage_collection
from ipu_model.source_lines import SourceLine
from ipu_model.step import NO_HINTS, NOWHERE, Argument, Hints, Op, Phase, Ref, Source, Step, Tensor, step_of_ops

Node = torch.fx.Node

# Results that are undefined or known when compiling: nothing happens on the device.
CONSTANTS = SHAPE_ONLY | {"new_empty_strided", "lift_fresh", "lift_fresh_copy"}

# Backward ops that follow the planning hints of their forward op.
_PLANNED_GRADIENTS = (
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "convolution_backward", "lstm_backward", "gru_backward",
    "rnn_tanh_backward", "rnn_relu_backward",
)  # fmt: skip

_PLANNING = ("available_memory_proportion", "serialisation", "multi_convolution")

_steps: WeakKeyDictionary[Graph, Step] = WeakKeyDictionary()


def step_of(graph: Graph) -> Step:
    if graph not in _steps:
        with no_garbage_collection():
            _steps[graph] = _Describer(graph).step()
    return _steps[graph]


class _Describer:
    """Gathers the facts about one graph; an op and the nodes of its single results become one `Op`."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = list(graph.ops.nodes)
        self._ops = [node for node in self._nodes if node.op == "call_function"]
        self._kinds = {node: kind_of(node.target) for node in self._ops}
        # Trainable variables and views and casts of them.
        self._weights = {graph.by_name[variable.tensor] for variable in graph.variables if variable.trainable}
        for node in self._ops:
            if (is_view(node) or self._kinds[node] == "_to_copy") and node.args[0] in self._weights:
                self._weights.add(node)
        self._sources = dict.fromkeys(graph.inputs, Source.INPUT)
        self._sources |= {variable.tensor: Source.VARIABLE for variable in graph.variables}
        self._known = self._known_when_compiling()
        self._planning = self._planning_hints()
        # Read while the program is there: a file or a cell may change.
        lines = {line for line in (info_of(node).line for node in self._ops) if line is not None}
        self._lines: dict[SourceLine | None, str] = {None: "", **{line: str(line) for line in lines}}
        self._items: dict[Node, dict[int, Node]] = {}
        for node in self._ops:
            if node.target is operator.getitem:
                self._items.setdefault(op_of(node), {}).setdefault(int(node.args[1]), node)

    def step(self) -> Step:
        graph = self._graph
        entering = [self._entering(node) for node in self._nodes if node.op in ("placeholder", "get_attr")]
        sent = {tensor.name: tensor for tensor, _ in entering}
        step = step_of_ops(
            [self._op(node) for node in self._ops if node.target is not operator.getitem],
            entering,
            variables=graph.variables,
            inputs=tuple(  # the host may send another type than forward sees
                replace(sent[name], dtype=dtype_of(spec.dtype)) for name, spec in graph.inputs.items()
            ),
            outputs=tuple(output.node for output in graph.outputs if output.node is not None),
            gradients=graph.gradients,
            loss=graph.loss,
            block_entries=graph.block_entries,
            layers=graph.layers,
        )
        # Constants enter where they are first needed; results that no node looks at are no tensors of the step.
        order = [node.name for node in self._nodes]
        names = ", ".join(graph.unsupported)
        return replace(
            step,
            tensors={name: step.tensors[name] for name in order if name in step.tensors},
            storages={name: step.storages[name] for name in order if name in step.storages},
            notes=(f"PopTorch has no handler for {names}: IPUs could not run this program.",) if names else (),
        )

    def _entering(self, node: Node) -> tuple[Tensor, Source]:
        source = Source.CONSTANT if node.op == "get_attr" else self._sources.get(node.name, Source.SEED)
        spec, of_weight = self._graph.spec(node.name), node in self._weights
        dtype = dtype_of(spec.dtype)
        return Tensor(node.name, spec.shape, dtype, spec.stride, node.name, of_weight=of_weight), source

    def _op(self, node: Node) -> Op:
        info = info_of(node)
        results: list[Tensor | None] = []
        for index, spec in enumerate(info.spec if isinstance(info.spec, tuple) else (info.spec,)):
            item = self._items.get(node, {}).get(index) if isinstance(info.spec, tuple) else node
            if spec is None:
                results.append(None)
                continue
            name = item.name if item is not None else f"{node.name}[{index}]"
            storage = self._graph.roots[item].name if item is not None else name
            kind, of_weight = dtype_of(spec.dtype), item in self._weights
            results.append(Tensor(name, spec.shape, kind, spec.stride, storage, node.name, index, of_weight))
        schema = getattr(node.target, "_schema", None)
        return Op(
            name=node.name,
            kind=self._kinds[node],
            results=tuple(results),
            arguments=tuple(_argument(value) for value in node.args),
            keywords=tuple((key, _argument(value)) for key, value in node.kwargs.items()),
            target=str(node.target),
            phase=info.phase or Phase.FORWARD,
            placement=info.placement or NOWHERE,
            scope=info.scope,
            forward_op=info.forward_op,
            hints=self._hints(node),
            writes=tuple(dict.fromkeys(self._graph.roots[written].name for written in written_arguments(node))),
            is_in_place=schema is not None and bool(schema.is_mutable),
            is_view=is_view(node),
            is_known=node in self._known,
            makes_constant=self._makes_constant(node),
            name_scopes=info.name_scopes,
            attributes=tuple(
                (name, tuple((str(key), str(value)) for key, value in values.items()))
                for name, values in info.attributes.items()
            ),
            line=self._lines[info.line],
            is_repeated=info.repeated,
        )

    def _makes_constant(self, node: Node) -> bool:
        return self._kinds[node] in CONSTANTS or not (node.all_input_nodes or is_random(node))

    def _known_when_compiling(self) -> set[Node]:
        roots = self._graph.roots
        known = {node for node in self._nodes if node.op == "get_attr"}
        written: set[Node] = set()
        for node in self._ops:
            inputs = [source for source in node.all_input_nodes if info_of(source).spec is not None]
            fixed = all(source in known and roots[source] not in written for source in inputs)
            info = info_of(node)
            # PopART folds nothing that a loop gets from outside, or that its repeats hand on.
            enters = info.loop is not None and any(info_of(source).loop is not info.loop for source in inputs)
            fixed = fixed and not enters and not info.marks.is_carried
            if self._makes_constant(node) or (inputs and fixed and not is_random(node)):
                known.add(node)
            else:
                written.update(roots[target] for target in written_arguments(node))
        return known

    def _planning_hints(self) -> Mapping[Node, Hints]:
        hints: dict[Node, Hints] = {}
        of_operand: dict[tuple[Node, str], Hints] = {}
        for node in self._ops:
            info = info_of(node)
            operands = [(self._graph.roots[source], info.scope) for source in node.all_input_nodes]
            own = Hints(**{name: getattr(info.marks, name) for name in _PLANNING})
            if own != NO_HINTS:
                hints[node] = own
                of_operand.update(dict.fromkeys(operands, own))
            elif info.phase is Phase.BACKWARD and self._kinds[node] in _PLANNED_GRADIENTS:
                inherited = next((of_operand[operand] for operand in operands if operand in of_operand), None)
                if inherited is not None:
                    hints[node] = inherited
        return hints

    def _hints(self, node: Node) -> Hints:
        marks = info_of(node).marks
        results = (info_of(item).marks for item in self._items.get(node, {}).values())
        hints = replace(
            self._planning.get(node, NO_HINTS),
            recomputation_checkpoint=any(said.recomputation_checkpoint for said in (marks, *results)),
            is_nop=marks.is_nop,
            is_printed=marks.printed is not None,
            is_anchor=marks.is_anchor,
        )
        return NO_HINTS if hints == NO_HINTS else hints


def _argument(value: object) -> Argument:
    if isinstance(value, Node):
        return Ref(value.name)
    if isinstance(value, torch.dtype):
        return dtype_of(value)
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(_argument(item) for item in value)
    return str(value)


def digest_of(graph: Graph) -> str:
    """Return hexadecimal digits, the same in every process, for programs that compute and cost the same."""
    described = step_of(graph)
    step = replace(
        described,
        ops=tuple(
            replace(op, placement=replace(op.placement, block="", stage=op.stage), line="") for op in described.ops
        ),
        block_entries=tuple(replace(entry, block="", stage=0) for entry in described.block_entries),
        layers={},
        notes=(),
    )
    digest = hashlib.blake2b(digest_size=20)
    for field in fields(step):
        digest.update(f"{field.name}={getattr(step, field.name)!r};".encode())
    for name in ("mutated", "assigned"):
        digest.update(f"{name}={sorted(getattr(graph, name))};".encode())
    for name, constant in graph.constants.items():
        digest.update(f"{name}: {constant.dtype} {tuple(constant.shape)};".encode())
        digest.update(constant.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
