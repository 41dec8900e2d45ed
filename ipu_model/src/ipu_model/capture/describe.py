"""Describe a captured graph as a `Step`: everything that the performance model reads, resolved once."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.fx

from ipu_model.capture.aliases import is_view, storage_roots, written_arguments
from ipu_model.capture.graph import Graph, TensorSpec, dtype_of
from ipu_model.process import no_garbage_collection
from ipu_model.source_lines import SourceLine
from ipu_model.step import (
    NO_HINTS,
    Argument,
    Hints,
    MultiConvolution,
    Op,
    Phase,
    Ref,
    Serialisation,
    Source,
    Step,
    Tensor,
    Variable,
    step_of_ops,
)

Node = torch.fx.Node

# Results that are undefined or known when compiling: nothing happens on the device.
CONSTANTS = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "zeros",
    "zeros_like", "ones", "ones_like", "full", "full_like", "new_zeros", "new_ones", "new_full", "arange",
    "linspace", "eye", "scalar_tensor", "lift_fresh", "lift_fresh_copy", "tril_indices", "triu_indices",
    "hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window",
})  # fmt: skip

# Backward ops that follow the planning hints of their forward op.
_PLANNED_GRADIENTS = (
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "convolution_backward", "lstm_backward", "gru_backward",
    "rnn_tanh_backward", "rnn_relu_backward",
)  # fmt: skip


_steps: WeakKeyDictionary[Graph, Step] = WeakKeyDictionary()


def step_of(graph: Graph) -> Step:
    """Return the step of a captured graph; the same object for the same graph."""
    if graph not in _steps:
        with no_garbage_collection():
            _steps[graph] = _Describer(graph).step()
    return _steps[graph]


def op_kind(node: Node) -> str:
    """Return the name of the op of `node` without namespace, overload and the underscore of in-place ops."""
    target: object = node.target
    if not hasattr(target, "_schema"):
        # Not remembered: it may be a function of the program, and refer to all of its model.
        return str(getattr(target, "__name__", target))
    return _plain_name(target)


@lru_cache(maxsize=4096)
def _plain_name(target: Any) -> str:
    name = str(target._schema.name).rpartition("::")[2]
    return name if name.endswith("__") else name.removesuffix("_")


class _Describer:
    """Gathers the facts about one graph; an op and the nodes of its single results become one `Op`."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = list(graph.ops.nodes)
        self._roots = storage_roots(graph.ops)
        self._kinds = {node: op_kind(node) for node in self._nodes if _is_op(node)}
        self._weights = self._of_weights()
        self._known = self._known_when_compiling()
        self._planning = self._planning_hints()
        self._items: dict[Node, dict[int, Node]] = {}
        for node in self._nodes:
            if _is_item(node):
                self._items.setdefault(_op_of(node), {}).setdefault(int(node.args[1]), node)

    def step(self) -> Step:
        """Return the step of the graph."""
        graph = self._graph
        entering = [(self._entering(node), self._source(node)) for node in self._nodes if _enters(node)]
        made = [self._op(node) for node in self._nodes if _is_op(node) and not _is_item(node)]
        sent = {tensor.name: tensor for tensor, _ in entering}
        found = step_of_ops(
            [op for op, _ in made],
            entering,
            variables=tuple(Variable(v.name, v.names, v.node, v.trainable, v.is_buffer) for v in graph.variables),
            inputs=tuple(  # the host may send another type than forward sees
                replace(sent[name], dtype=dtype_of(spec.dtype)) for name, spec in zip(graph.input_nodes, graph.inputs)
            ),
            outputs=tuple(output.node for output in graph.outputs if output.node is not None),
            gradients=graph.gradients,
            loss=graph.loss,
            block_entries=graph.block_entries,
            layers=graph.layers,
            unread=frozenset(name for _, unread in made for name in unread),
        )
        order = [node.name for node in self._nodes]  # constants enter where they are first needed
        return replace(
            found,
            tensors={name: found.tensors[name] for name in order if name in found.tensors},
            storages={name: found.storages[name] for name in order if name in found.storages},
        )

    def _source(self, node: Node) -> Source:
        if node.op == "get_attr":
            return Source.CONSTANT
        if node.name in self._graph.input_nodes:
            return Source.INPUT
        return Source.VARIABLE if any(v.node == node.name for v in self._graph.variables) else Source.SEED

    def _entering(self, node: Node) -> Tensor:
        spec: TensorSpec = node.meta["spec"]
        return Tensor(
            node.name, spec.shape, dtype_of(spec.dtype), spec.stride, node.name, of_weight=node in self._weights
        )

    def _op(self, node: Node) -> tuple[Op, list[str]]:
        """Return an op, and the names of its results that no node looks at."""
        specs = node.meta.get("spec")
        results: list[Tensor | None] = []
        unread: list[str] = []
        for index, spec in enumerate(specs if isinstance(specs, tuple) else (specs,)):
            item = self._items.get(node, {}).get(index) if isinstance(specs, tuple) else node
            if spec is None:
                results.append(None)
                continue
            name = item.name if item is not None else f"{node.name}[{index}]"
            storage = self._roots[item].name if item is not None else name
            if item is None:
                unread.append(name)
            kind, of_weight = dtype_of(spec.dtype), item in self._weights
            results.append(Tensor(name, spec.shape, kind, spec.stride, storage, node.name, index, of_weight))
        schema = getattr(node.target, "_schema", None)
        op = Op(
            name=node.name, kind=self._kinds[node], results=tuple(results),
            arguments=tuple(_argument(value) for value in node.args),
            keywords=tuple((key, _argument(value)) for key, value in node.kwargs.items()),
            target=str(node.target), phase=node.meta["phase"], placement=node.meta["placement"],
            scope=node.meta["scope"], forward_op=node.meta.get("forward_op"), hints=self._hints(node),
            writes=tuple(dict.fromkeys(self._roots[written].name for written in written_arguments(node))),
            is_in_place=schema is not None and bool(schema.is_mutable), is_view=is_view(node),
            is_known=node in self._known, makes_constant=self._kinds[node] in CONSTANTS,
            name_scopes=tuple(node.meta.get("name_scopes", ())), attributes=_attributes(node),
            line=_line(node.meta.get("line")),
        )  # fmt: skip
        return op, unread

    def _of_weights(self) -> frozenset[Node]:
        """Return trainable variables and views and casts of them."""
        trainable = {variable.node for variable in self._graph.variables if variable.trainable}
        found: set[Node] = set()
        for node in self._nodes:
            if node.op == "placeholder" and node.name in trainable:
                found.add(node)
            elif _is_op(node) and (is_view(node) or self._kinds[node] == "_to_copy"):
                source = node.args[0]
                if isinstance(source, Node) and source in found:
                    found.add(node)
        return frozenset(found)

    def _known_when_compiling(self) -> frozenset[Node]:
        """Return the nodes that PopART would fold: they depend on nothing that changes."""
        known: set[Node] = set()
        written: set[Node] = set()
        for node in self._nodes:
            if node.op == "get_attr":
                known.add(node)
            if not _is_op(node):
                continue
            inputs = [source for source in node.all_input_nodes if source.meta.get("spec") is not None]
            fixed = all(source in known and self._roots[source] not in written for source in inputs)
            if self._kinds[node] in CONSTANTS or (inputs and fixed and not _is_random(node)):
                known.add(node)
            else:
                written.update(self._roots[target] for target in written_arguments(node))
        return frozenset(known)

    def _planning_hints(self) -> Mapping[Node, Mapping[str, Any]]:
        """Map ops to the planning hints of the program; gradients follow their forward op."""
        found: dict[Node, Mapping[str, Any]] = {}
        of_operand: dict[tuple[Node, str], Mapping[str, Any]] = {}
        for node in self._nodes:
            if not _is_op(node):
                continue
            said = node.meta.get("hints", {})
            own = {key: said[key] for key in ("available_memory_proportion", "serialized", "multi_conv") if key in said}
            scope = node.meta["scope"]
            if own:
                found[node] = own
                of_operand.update({(self._roots[source], scope): own for source in node.all_input_nodes})
            elif node.meta["phase"] is Phase.BACKWARD and self._kinds[node] in _PLANNED_GRADIENTS:
                inherited = (of_operand.get((self._roots[source], scope)) for source in node.all_input_nodes)
                hints = next((hint for hint in inherited if hint), None)
                if hints is not None:
                    found[node] = hints
        return found

    def _hints(self, node: Node) -> Hints:
        said = node.meta.get("hints", {})
        planning = self._planning.get(node, {})
        of_results = (item.meta.get("hints", {}) for item in self._items.get(node, {}).values())
        is_checkpoint = any(each.get("recomputation_checkpoint") for each in (said, *of_results))
        if not said and not planning and not is_checkpoint:
            return NO_HINTS
        serialised, multi = planning.get("serialized"), planning.get("multi_conv")
        return Hints(
            recomputation_checkpoint=is_checkpoint,
            is_nop=bool(said.get("nop")),
            is_printed="printed" in said,
            is_anchor="anchored" in said,
            available_memory_proportion=planning.get("available_memory_proportion"),
            serialisation=Serialisation(**serialised) if serialised else None,
            multi_convolution=MultiConvolution(**multi) if multi else None,
        )


def _is_op(node: Node) -> bool:
    return bool(node.op == "call_function")


def _enters(node: Node) -> bool:
    return node.op in ("placeholder", "get_attr")


def _is_item(node: Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def _op_of(item: Node) -> Node:
    parent = item.args[0]
    assert isinstance(parent, Node)
    return parent


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _argument(value: object) -> Argument:
    """Return an argument of an op as plain data; layouts, devices and memory formats become their names."""
    if isinstance(value, Node):
        return Ref(value.name)
    if isinstance(value, torch.dtype):
        return dtype_of(value)
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(_argument(item) for item in value)
    return str(value)


@lru_cache(maxsize=4096)
def _line(line: SourceLine | None) -> str:
    """Return the text of a line, which must be read while the program is there: a cell of a notebook may change."""
    return "" if line is None else str(line)


def _attributes(node: Node) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    named: Mapping[str, Mapping[str, str]] = node.meta.get("attributes", {})
    return tuple((name, tuple(_items(values))) for name, values in named.items())


def _items(values: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return ((str(key), str(value)) for key, value in values.items())
