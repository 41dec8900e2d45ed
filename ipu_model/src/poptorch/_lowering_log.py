"""The debug lines that tell where each op of a compiled model runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch

from ipu_model.graph import Graph
from ipu_model.placement import Placement
from poptorch._logging import native_logger
from poptorch._tensor_names import op_names
from poptorch.options import Options
from poptorch.strategies import ExecutionStrategy, ShardedExecution, phase_number

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
