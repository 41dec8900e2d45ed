"""A captured graph as plain values and tensors, and back.

Names in a graph become names in the Python code that replays it: they are read only if they are plain identifiers.
"""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.graph import Graph, TensorSpec
from ipu_model.step import Phase, Placement
from ipu_model.stored.ops import name_of, op_named
from ipu_model.stored.shapes import require_declared
from ipu_model.stored.values import Invalid, NotStorable, damage_found, decode, encode

_APART = ("ops", "constants", "rebuild_outputs")
_KINDS = ("placeholder", "get_attr", "call_function")


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """The place of one output in the structure that forward returned."""

    number: int


def graph_form(graph: Graph) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return `graph` as values that JSON can hold, and its constants.

    Raises:
        NotStorable: results of forward in other containers than tuples, lists and dicts, or an op or a hint of a kind
            that the format does not know.
    """
    rest = {f.name: encode(getattr(graph, f.name)) for f in dataclasses.fields(graph) if f.name not in _APART}
    if any(isinstance(output.value, Tensor) for output in graph.outputs):
        raise NotStorable("a tensor of the host that forward returns")
    nodes = [_node_form(node) for node in graph.ops.nodes if node.op != "output"]
    results = encode(graph.ops.output_node().args[0])
    return {"nodes": nodes, "results": results, "structure": _structure(graph), **rest}, dict(graph.constants)


def _node_form(node: torch.fx.Node) -> list[Any]:
    target = name_of(node.target) if node.op == "call_function" else str(node.target)
    return [node.op, node.name, target, encode(node.args), encode(node.kwargs), encode(node.meta)]


def _structure(graph: Graph) -> Any:
    count = sum(not output.anchored for output in graph.outputs)
    try:
        built = graph.rebuild_outputs([_Leaf(number) for number in range(count)])
    except Exception as error:  # a custom type's own code, given leaves that are no tensors
        raise NotStorable("a result of forward of a type of its own") from error
    return _structure_form(built)


def _structure_form(value: Any) -> Any:
    if isinstance(value, _Leaf):
        return value.number
    if type(value) in (tuple, list):
        return {type(value).__name__: [_structure_form(item) for item in value]}
    if type(value) is dict:
        return {"dict": [[encode(key), _structure_form(item)] for key, item in value.items()]}
    raise NotStorable(f"a result of forward of type {type(value).__module__}.{type(value).__qualname__}")


def graph_of(form: Mapping[str, Any], constants: Mapping[str, Tensor]) -> Graph:
    """Return the graph that `graph_form` was given.

    Raises:
        Invalid: not a result of `graph_form`.
    """
    with damage_found("its program does not follow the format"):
        return _graph_of(form, constants)


def _graph_of(form: Mapping[str, Any], constants: Mapping[str, Tensor]) -> Graph:
    ops = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    for kind, name, target, args, kwargs, meta in form["nodes"]:
        _require_identifiers(name, *((target,) if kind != "call_function" else ()))
        if kind not in _KINDS or (kind == "get_attr" and target not in constants):
            raise Invalid(f"the node {name!r} is of an unknown kind or has no value")
        keywords = decode(kwargs, nodes)
        _require_identifiers(*keywords)
        call = op_named(target) if kind == "call_function" else target
        nodes[name] = ops.create_node(kind, call, decode(args, nodes), keywords, name=name)
        nodes[name].name = name
        nodes[name].meta = _meta_of(decode(meta))
    ops.output(decode(form["results"], nodes))
    ops.lint()
    rest = {f.name: decode(form[f.name]) for f in dataclasses.fields(Graph) if f.name not in _APART}
    _require_identifiers(*constants)
    leaves = sum(not output.anchored for output in rest["outputs"])
    structure = _rebuild(form["structure"], leaves)
    graph = Graph(ops=ops, constants=dict(constants), rebuild_outputs=structure, **rest)
    require_declared(graph, but=frozenset(_APART))
    _require_nodes(graph, nodes)
    return graph


def _meta_of(meta: Any) -> dict[str, Any]:
    """Check what is said about an op: the table of `ipu_model.graph`."""
    if not isinstance(meta, dict):
        raise Invalid("an op without a description")
    spec = meta.get("spec")
    require_declared(_Described(
        phase=meta.get("phase"), placement=meta.get("placement"), scope=meta.get("scope", ""),
        spec=spec if isinstance(spec, tuple) else (spec,), hints=meta.get("hints", {}),
        name_scope=meta.get("name_scope", ""), name_scopes=meta.get("name_scopes", ()),
        attributes=meta.get("attributes", {}),
    ))  # fmt: skip
    return meta


@dataclasses.dataclass(frozen=True)
class _Described:
    """What the meta of an op may hold."""

    phase: Phase | None
    placement: Placement | None
    scope: str
    spec: tuple[TensorSpec | None, ...]
    hints: Mapping[str, Any]
    name_scope: str
    name_scopes: tuple[tuple[int, str], ...]
    attributes: Mapping[str, Mapping[str, Any]]


def _require_nodes(graph: Graph, nodes: Mapping[str, Any]) -> None:
    """Check that what the records name is in the graph, and that each has what all code reads of it."""
    named: list[str | None] = [
        *graph.input_nodes,
        *(v.node for v in graph.variables),
        *graph.gradients.values(),
        *graph.mutated,
    ]
    named += [*graph.assigned, *(output.node for output in graph.outputs), graph.loss]
    named += [*graph.activation_gradients, *graph.activation_gradients.values()]
    missing = [name for name in named if name is not None and name not in nodes]
    if missing:
        raise Invalid(f"{missing[0]!r} is named, but no op")
    if not set(graph.gradients) <= {variable.name for variable in graph.variables}:
        raise Invalid("a gradient of no weight")
    if len(graph.input_nodes) != len(graph.inputs):
        raise Invalid("inputs that no op takes")
    for name, node in nodes.items():
        if node.op == "call_function" and not {"phase", "placement", "scope", "spec"} <= node.meta.keys():
            raise Invalid(f"the op {name!r} without a full description")


def _require_identifiers(*names: Any) -> None:
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise Invalid(f"{name!r} is no name of a node")


def _rebuild(structure: Any, count: int) -> Callable[[Sequence[Any]], Any]:
    """Return the function that puts `count` results into the containers that forward returned."""
    if isinstance(structure, int):
        if not 0 <= structure < count:
            raise Invalid("a result that there is not")
        return lambda leaves: leaves[structure]
    ((kind, content),) = structure.items()
    if kind == "dict":
        parts = {decode(key): _rebuild(item, count) for key, item in content}
        return lambda leaves: {key: part(leaves) for key, part in parts.items()}
    container = {"tuple": tuple, "list": list}[kind]
    items = [_rebuild(item, count) for item in content]
    return lambda leaves: container(item(leaves) for item in items)
