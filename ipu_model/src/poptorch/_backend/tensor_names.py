"""The names of a compiled program's tensors, as `getTensorNames` lists them and `anchorTensor` understands them.

================================  ==============================================================================
``input``, ``input/1``            what the call sends, in the order of forward's arguments
``layers.0.weight``               parameters and buffers, before the weight update
``layers/0/Conv:0``               results of forward's ops: module path, kind of op, number of the result; a name
                                  that is there already gets ``/1``, ``/2``
``loss``                          what is differentiated
``Gradient___`` + any of these    the gradient of the loss with respect to it, of one micro-batch
``UpdatedVar___`` + parameter     the parameter after the weight update
``lossScaling_FLOAT``, ...        numbers of the optimiser, those of a parameter with ``___specific___`` and its name
================================  =============================================================================="""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import torch
import torch.fx

from ipu_model.capture.aliases import storage_roots
from ipu_model.graph import Graph, Printed, TensorSpec
from ipu_model.step import Phase, Placement
from poptorch._logging import native_logger
from poptorch.options import Options
from poptorch.options.strategies import ExecutionStrategy, ShardedExecution, phase_number

GRADIENT, UPDATED = "Gradient___", "UpdatedVar___"


@dataclass(frozen=True)
class Source:
    """Where a named tensor is: a node of the graph, or a variable or number of the optimiser after the update."""

    node: str | None = None
    updated: str | None = None


def tensor_names(graph: Graph, *, module_scopes: bool = True, numbers: Iterable[str] = ()) -> dict[str, Source]:
    """Return every named tensor of `graph`, `numbers` of the optimiser included.

    Without `module_scopes`, ops are named without their module's path.
    """
    found: dict[str, Source] = {}
    found.update(_inputs(graph))
    found.update((name, Source(variable.node)) for variable in graph.variables for name in variable.names)
    ops = op_names(graph, module_scopes=module_scopes)
    found.update((name, Source(node)) for node, name in ops.items())
    if graph.loss is not None:
        found["loss"] = Source(graph.loss)
    for variable in graph.variables:
        if variable.name in graph.gradients:
            gradient = Source(graph.gradients[variable.name])
            found.update((GRADIENT + name, gradient) for name in variable.names)
    found.update(_activation_gradients(graph, ops))
    for variable in graph.variables:
        if variable.name in graph.gradients:
            found.update((UPDATED + name, Source(updated=variable.name)) for name in variable.names)
    found.update((name, Source(updated=name)) for name in numbers)
    return found


def op_names(graph: Graph, *, module_scopes: bool = True) -> dict[str, str]:
    """Map the nodes of the results of forward's ops to their names, in order.

    Weights that are only looked at in another way (`weight.t()`) have no name of their own.
    """
    roots = storage_roots(graph.ops)
    variables = {variable.node for variable in graph.variables}
    taken: dict[str, int] = {}
    found: dict[str, str] = {}
    for node in graph.ops.nodes:
        if not _is_forward_result(node) or roots[node].name in variables:
            continue
        name = _path(node, module_scopes) + kind_of(node)
        again = taken.get(name, 0)
        taken[name] = again + 1
        found[node.name] = f"{name}/{again}" if again else name
    return found


def ops_of(graph: Graph, *, module_scopes: bool = True) -> Iterator[tuple[torch.fx.Node, str, str]]:
    """Yield every op of forward and backward but views of weights, with its path and kind as a name, and its kind."""
    roots = storage_roots(graph.ops)
    variables = {variable.node for variable in graph.variables}
    for node in graph.ops.nodes:
        is_op = node.op == "call_function" and node.target is not operator.getitem
        if is_op and roots[node].name not in variables:
            kind = _type(node)
            yield node, _path(node, module_scopes) + kind, kind


def title_prints(graph: Graph, *, module_scopes: bool = True) -> None:
    """Give the prints of `graph` that have no title the name of the tensor that the program printed."""
    nodes = {node.name: node for node in graph.ops.nodes}
    untitled = {node: printed for node in nodes.values() if (printed := _print_of(node)) and not printed.title}
    if not untitled:
        return
    names = {source.node: name for name, source in reversed(tensor_names(graph, module_scopes=module_scopes).items())}
    for node, printed in untitled.items():
        of = node if printed.gradient_of is None else nodes.get(printed.gradient_of, node)
        argument = of.all_input_nodes[0].name
        title = names.get(argument, argument) + ("" if of is node else "_gradient")
        node.meta["hints"] = {**node.meta["hints"], "printed": replace(printed, title=title)}


def _print_of(node: torch.fx.Node) -> Printed | None:
    printed = node.meta.get("hints", {}).get("printed")
    return printed if isinstance(printed, Printed) else None


def _inputs(graph: Graph) -> Iterator[tuple[str, Source]]:
    for number, node in enumerate(graph.input_nodes):
        yield f"input/{number}" if number else "input", Source(node)


def _activation_gradients(graph: Graph, ops: Mapping[str, str]) -> Iterator[tuple[str, Source]]:
    gradients = graph.activation_gradients
    yield from ((GRADIENT + name, Source(gradients[node])) for node, name in ops.items() if node in gradients)
    if graph.loss is not None and graph.loss in gradients:
        yield f"{GRADIENT}loss", Source(gradients[graph.loss])


def _is_forward_result(node: torch.fx.Node) -> bool:
    is_op = node.op == "call_function" and node.meta.get("phase") is Phase.FORWARD
    # The copy that an anchor takes of a tensor is none of forward's.
    is_own = "anchored" not in node.meta.get("hints", {})
    return is_op and is_own and isinstance(node.meta.get("spec"), TensorSpec)


def _path(node: torch.fx.Node, module_scopes: bool) -> str:
    """Return the path before the kind of op: submodules, with the program's own name scopes where they were entered."""
    scope = node.meta.get("scope", "") if module_scopes else ""
    parts: list[str] = [part for part in scope.split(".") if part]
    for shift, (depth, name) in enumerate(node.meta.get("name_scopes", ())):
        parts.insert(depth + shift, name)
    return "".join(f"{part}/" for part in parts)


def kind_of(node: torch.fx.Node) -> str:
    """Return the kind of op that a node is, and which of its results."""
    result = 0
    if node.target is operator.getitem:
        parent, number = node.args
        assert isinstance(number, int)
        node, result = parent, number  # type: ignore[assignment]  # getitem takes an op's results apart
    return f"{_type(node)}:{result}"


def _type(node: torch.fx.Node) -> str:
    """Return PopART's word for an op, or its aten name in CamelCase."""
    if _print_of(node):
        return "PrintTensor"
    name = _aten_name(node)
    return _types().get(name) or _camel_case(name.split("_"))


def _aten_name(node: torch.fx.Node) -> str:
    """Return the name of an op without namespace, overload and the underscore of in-place ops."""
    schema = getattr(node.target, "_schema", None)
    name = str(getattr(node.target, "__name__", node.target)) if schema is None else str(schema.name)
    return name.rpartition("::")[2].removesuffix("_")


def _camel_case(words: Iterable[str]) -> str:
    return "".join(word.capitalize() for word in words)


@cache
def _types() -> dict[str, str]:
    text = (resources.files("poptorch") / "data" / "op_types.json").read_text(encoding="utf-8")
    types: dict[str, str] = json.loads(text)["types"]
    return types


def graph_text(graph: Graph, options: Options) -> str:
    """Return the ops as JSON text in the form of PopART's: what tooling searches for names and kinds of ops.

    `maingraph` is a list of ops, each with `name`, `type` and `attributes`, those of `poptorch.Attribute`.
    """
    ops = [
        {"name": name, "type": kind, "attributes": node.meta.get("attributes", {})}
        for node, name, kind in ops_of(graph, module_scopes=options._module_namescope_enabled)
    ]
    return json.dumps({"maingraph": ops})


# The names that PopTorch's graphs have for element types.
_ELEMENT_TYPES = {
    torch.float16: "Half", torch.float32: "Float", torch.float64: "Double", torch.int8: "Char", torch.uint8: "Byte",
    torch.int16: "Short", torch.int32: "Int", torch.int64: "Long", torch.bool: "Bool",
}  # fmt: skip


def log_ops(graph: Graph, options: Options) -> None:
    """Write one debug line for each op of forward, or an info line if there is none for the device to run."""
    if not any(node.op == "call_function" for node in graph.ops.nodes):
        native_logger.info("The model has no operation for the device: it runs on the host only")
    elif native_logger.isEnabledFor(logging.DEBUG):
        for line in op_lines(graph, options):
            native_logger.debug("%s", line)


def op_lines(graph: Graph, options: Options) -> Iterator[str]:
    """Yield the lines that tell name, result and place of the ops of forward."""
    named = op_names(graph, module_scopes=options._module_namescope_enabled)
    for node in graph.ops.nodes:
        if node.name in named:
            spec, place = node.meta["spec"], node.meta["placement"]
            kind = _ELEMENT_TYPES.get(spec.dtype, str(spec.dtype))
            shape = ", ".join(map(str, spec.shape))
            where = _where(place, options._execution_strategy)
            yield f"{node.target} was lowered to {named[node.name]} [{kind}({shape}), {where}]"


def _where(place: Placement, strategy: ExecutionStrategy) -> str:
    if place.phase is not None:
        return f"mode(Phased), ipu({place.ipu}), phase({phase_number(strategy, place.phase)})"
    mode = "Sharded" if isinstance(strategy, ShardedExecution) else "Pipelined"
    return f"mode({mode}), ipu({place.ipu}), stage({place.stage})"
