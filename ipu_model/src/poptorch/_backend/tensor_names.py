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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ipu_model.capture.assemble import title_prints
from ipu_model.capture.graph import Graph
from ipu_model.step import Op, Placement, Step, Tensor
from ipu_model.step import Source as Origin
from poptorch._logging import native_logger
from poptorch.options import Options
from poptorch.options.strategies import ShardedExecution, _IExecutionStrategy, _IPhasedExecution

GRADIENT, UPDATED = "Gradient___", "UpdatedVar___"


@dataclass(frozen=True)
class Source:
    """Where a named tensor is: a node of the graph, or a variable or number of the optimiser after the update."""

    node: str | None = None
    updated: str | None = None


def tensor_names(
    graph: Graph, step: Step, *, module_scopes: bool = True, numbers: Iterable[str] = ()
) -> dict[str, Source]:
    """Return every named tensor of `graph`; without `module_scopes`, ops have no path of their module."""
    gradients = graph.activation_gradients
    ops = op_names(step, module_scopes=module_scopes)
    trained = [variable for variable in graph.variables if variable.name in graph.gradients]
    names = {f"input/{number}" if number else "input": Source(node) for number, node in enumerate(graph.input_nodes)}
    names.update((name, Source(variable.tensor)) for variable in graph.variables for name in variable.names)
    names.update((name, Source(node)) for node, name in ops.items())
    if graph.loss is not None:
        names["loss"] = Source(graph.loss)
    for variable in trained:
        names.update((GRADIENT + name, Source(graph.gradients[variable.name])) for name in variable.names)
    names.update((GRADIENT + name, Source(gradients[node])) for node, name in ops.items() if node in gradients)
    if graph.loss is not None and graph.loss in gradients:
        names[f"{GRADIENT}loss"] = Source(gradients[graph.loss])
    for variable in trained:
        names.update((UPDATED + name, Source(updated=variable.name)) for name in variable.names)
    names.update((name, Source(updated=name)) for name in numbers)
    return names


def op_names(step: Step, *, module_scopes: bool = True) -> dict[str, str]:
    """Map the results of forward's ops to their names, in order.

    Views of weights (`weight.t()`) have no name of their own.
    """
    taken: dict[str, int] = {}
    names: dict[str, str] = {}
    for op, tensor in _forward_results(step):
        name = f"{_path(op, module_scopes)}{_type(op)}:{tensor.index}"
        again = taken.get(name, 0)
        taken[name] = again + 1
        names[tensor.name] = f"{name}/{again}" if again else name
    return names


def _forward_results(step: Step) -> Iterator[tuple[Op, Tensor]]:
    # Results that other ops read, without the copies made for anchors.
    for tensor in step.tensors.values():
        op = step.producer(tensor.name)
        if op is not None and not op.is_backward and not op.hints.is_anchor and not _of_variable(step, tensor):
            yield op, tensor


def _of_variable(step: Step, tensor: Tensor) -> bool:
    return step.storages.get(tensor.storage) is Origin.VARIABLE


def name_prints(graph: Graph, step: Step, *, module_scopes: bool = True) -> None:
    """Set the title of each untitled print in `graph` to the name of the tensor that it prints."""
    if not any(op.hints.is_printed for op in step.ops):
        return
    sources = reversed(tensor_names(graph, step, module_scopes=module_scopes).items())
    names = {source.node: name for name, source in sources}
    title_prints(graph, lambda tensor, is_gradient: names.get(tensor, tensor) + ("_gradient" if is_gradient else ""))


def _path(op: Op, module_scopes: bool) -> str:
    parts = [part for part in op.scope.split(".") if part] if module_scopes else []
    for shift, (depth, name) in enumerate(op.name_scopes):
        parts.insert(depth + shift, name)
    return "".join(f"{part}/" for part in parts)


def _type(op: Op) -> str:
    if op.hints.is_printed:
        return "PrintTensor"
    return _types().get(op.kind) or "".join(word.capitalize() for word in op.kind.split("_"))


@cache
def _types() -> dict[str, str]:
    text = (resources.files("poptorch") / "data" / "op_types.json").read_text(encoding="utf-8")
    types: dict[str, str] = json.loads(text)["types"]
    return types


def graph_text(step: Step, options: Options) -> str:
    """Return the ops as JSON text in PopART's format, so that tools can search it for names and kinds of ops.

    `maingraph` is a list of forward and backward ops except views of weights, each with `name`, `type` and
    `attributes`, those of `poptorch.Attribute`.
    """
    ops = []
    for op in step.ops:
        if not any(result is not None and _of_variable(step, result) for result in op.results):
            kind, attributes = _type(op), {key: dict(values) for key, values in op.attributes}
            name = _path(op, options._module_namescope_enabled) + kind
            ops.append({"name": name, "type": kind, "attributes": attributes})
    return json.dumps({"maingraph": ops})


# The names that PopTorch's graphs have for element types.
_ELEMENT_TYPES = {"float16": "Half", "float32": "Float", "float64": "Double", "bool": "Bool"}
_ELEMENT_TYPES |= {"int8": "Char", "uint8": "Byte", "int16": "Short", "int32": "Int", "int64": "Long"}


def log_ops(step: Step, options: Options) -> None:
    """Write one debug line for each op of forward, or an info line if there is none for the device to run."""
    if not step.ops:
        native_logger.info("The model has no operation for the device: it runs on the host only")
    if not native_logger.isEnabledFor(logging.DEBUG):
        return
    names = op_names(step, module_scopes=options._module_namescope_enabled)
    for op, tensor in _forward_results(step):
        kind = _ELEMENT_TYPES.get(tensor.dtype.name, f"torch.{tensor.dtype.name}")
        result = f"{kind}({', '.join(map(str, tensor.shape))})"
        where = _where(op.placement, options._execution_strategy)
        native_logger.debug("%s was lowered to %s [%s, %s]", op.target, names[tensor.name], result, where)


def _where(place: Placement, strategy: _IExecutionStrategy) -> str:
    if place.phase is not None and isinstance(strategy, _IPhasedExecution):
        return f"mode(Phased), ipu({place.ipu}), phase({strategy.phase_number(place.phase)})"
    mode = "Sharded" if isinstance(strategy, ShardedExecution) else "Pipelined"
    return f"mode({mode}), ipu({place.ipu}), stage({place.stage})"
