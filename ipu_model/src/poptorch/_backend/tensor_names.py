"""What a call returns, and the names of tensors, as `getTensorNames` lists them and `anchorTensor` understands them.

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

import difflib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NoReturn

import torch

from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.capture.micro_batch import title_prints, with_results
from ipu_model.compute.gradients import FINAL
from ipu_model.compute.session import RETURNED_DTYPE
from ipu_model.compute.update_rules import is_scalar_name
from ipu_model.errors import Error
from ipu_model.step import Op, Placement, Step, Tensor
from ipu_model.step import Source as Origin
from poptorch._logging import native_logger
from poptorch.options import Options
from poptorch.options.strategies import ShardedExecution, _IExecutionStrategy, _IPhasedExecution

GRADIENT, UPDATED = "Gradient___", "UpdatedVar___"
_SHOWN = 5


@dataclass(frozen=True)
class Source:
    """Where a named tensor is: a node of the graph, or a variable or number of the optimiser after the update."""

    node: str | None = None
    updated: str | None = None


def tensor_names(graph: Graph, options: Options, numbers: Iterable[str] = ()) -> dict[str, Source]:
    gradients = graph.activation_gradients
    ops = {tensor.name: name for _, tensor, name in _named_results(step_of(graph), options)}
    trained = [variable for variable in graph.variables if variable.name in graph.gradients]
    names = {f"input/{number}" if number else "input": Source(node) for number, node in enumerate(graph.inputs)}
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
    if graph.loss is not None and options._backend.adapts_loss_scaling:
        names[FINAL] = Source(updated=FINAL)
    return names


def _named_results(step: Step, options: Options) -> Iterator[tuple[Op, Tensor, str]]:
    # The results of forward's ops in order, without copies made for anchors; views of weights (`weight.t()`) have no
    # name of their own.
    taken: Counter[str] = Counter()
    for tensor in step.tensors.values():
        op = step.producer(tensor.name)
        if op is not None and not op.is_backward and not op.hints.is_anchor and not _of_variable(step, tensor):
            name = f"{_path(op, options)}{_type(op)}:{tensor.index}"
            yield op, tensor, f"{name}/{taken[name]}" if taken[name] else name
            taken[name] += 1


def _of_variable(step: Step, tensor: Tensor) -> bool:
    return step.storages.get(tensor.storage) is Origin.VARIABLE


def name_prints(graph: Graph, options: Options) -> None:
    if any(op.hints.is_printed for op in step_of(graph).ops):
        names = {source.node: name for name, source in reversed(tensor_names(graph, options).items())}
        title_prints(graph, lambda tensor, is_gradient: names.get(tensor, tensor) + is_gradient * "_gradient")


def _path(op: Op, options: Options) -> str:
    parts = [part for part in op.scope.split(".") if part] if options._module_namescope_enabled else []
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
    """Return all ops but views of weights as JSON text in PopART's format, so that tools can search it."""
    ops = []
    for op in step.ops:
        if not any(result is not None and _of_variable(step, result) for result in op.results):
            kind, attributes = _type(op), {key: dict(values) for key, values in op.attributes}
            ops.append({"name": _path(op, options) + kind, "type": kind, "attributes": attributes})
    return json.dumps({"maingraph": ops})


# The names that PopTorch's graphs have for element types.
_ELEMENT_TYPES = {"float16": "Half", "float32": "Float", "float64": "Double", "bool": "Bool"}
_ELEMENT_TYPES |= {"int8": "Char", "uint8": "Byte", "int16": "Short", "int32": "Int", "int64": "Long"}


def log_ops(step: Step, options: Options) -> None:
    if not step.ops:
        native_logger.info("The model has no operation for the device: it runs on the host only")
    if not native_logger.isEnabledFor(logging.DEBUG):
        return
    for op, tensor, name in _named_results(step, options):
        kind = _ELEMENT_TYPES.get(tensor.dtype.name, f"torch.{tensor.dtype.name}")
        result = f"{kind}({', '.join(map(str, tensor.shape))})"
        where = _where(op.placement, options._execution_strategy)
        native_logger.debug("%s was lowered to %s [%s, %s]", op.target, name, result, where)


def _where(place: Placement, strategy: _IExecutionStrategy) -> str:
    if place.phase is not None and isinstance(strategy, _IPhasedExecution):
        return f"mode(Phased), ipu({place.ipu}), phase({strategy.phase_number(place.phase)})"
    mode = "Sharded" if isinstance(strategy, ShardedExecution) else "Pipelined"
    return f"mode({mode}), ipu({place.ipu}), stage({place.stage})"


def anchors_of(graph: Graph, options: Options, numbers: Sequence[str] = ()) -> dict[str, Source]:
    """Return the tensors that `anchorTensor` names, by their short names."""
    wanted = {short_name: long_name for short_name, (long_name, *_) in options.anchored_tensors.items()}
    known = tensor_names(graph, options, numbers) if wanted else {}
    for short_name, long_name in wanted.items():
        if long_name not in known:
            nearest = difflib.get_close_matches(long_name, known, n=_SHOWN, cutoff=0.5)
            inside = [name for name in known if str(long_name).lower() in name.lower() and name not in nearest]
            shown = [*nearest, *inside][:_SHOWN]
            kind = "The nearest names are" if shown else "There are for instance"
            raise Error(
                f"anchorTensor('{short_name}', '{long_name}'): the compiled model has no tensor named '{long_name}'. "
                f"{kind}: {', '.join(shown or list(known)[:_SHOWN])}. "
                "Compile the model without this anchor and call getTensorNames() to see all of them."
            )
    return {short_name: known[long_name] for short_name, long_name in wanted.items()}


def with_anchors(graph: Graph, options: Options) -> Graph:
    """Return `graph` with the anchored tensors as outputs after those of forward; without any, `graph` itself."""
    numbers = [long_name for long_name, *_ in options.anchored_tensors.values() if is_scalar_name(long_name)]
    sources = anchors_of(graph, options, numbers).values()
    wanted = [source.node for source in sources if source.node is not None]
    return with_results(graph, wanted) if wanted else graph


def present(
    graph: Graph, anchors: Mapping[str, Source], results: Sequence[torch.Tensor]
) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return what forward does, and the anchored tensors by their short names."""
    computed, leaves = iter(results), []
    for output in graph.outputs:
        if output.anchored:
            continue
        leaf = output.value if output.node is None else next(computed)
        if isinstance(leaf, torch.Tensor):
            if output.node is None:
                leaf = leaf.detach().to(RETURNED_DTYPE.get(leaf.dtype, leaf.dtype), copy=True)
            # Outputs are pickled as plain tensors, so that files with them load without PopTorch.
            leaf.__dict__.update(backward=_refuse_backward, __getstate__=lambda: None)
        leaves.append(leaf)
    # The others are anchored: first those of the graph, then updated variables.
    short_names = sorted(anchors, key=lambda short_name: anchors[short_name].node is None)
    return graph.rebuild_outputs(leaves), dict(zip(short_names, computed, strict=True))


def _refuse_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise Error(
        "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a trainingModel, the "
        "backwards pass is performed automatically when invoking the model. If you're using an inferenceModel, you "
        "should use a trainingModel instead."
    )


def synthetic(inputs: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(t.shape, generator=generator).to(t.dtype) if t.is_floating_point() else torch.zeros_like(t)
        for t in inputs
    ]
