"""Floating-point exceptions: stop at the first op that makes an infinity or a NaN out of finite numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.aliases import written_arguments
from ipu_model.errors import Error
from ipu_model.graph import TensorSpec
from ipu_model.numerics.rounding import round_to_half_


def check_every_result(graph: torch.fx.Graph) -> None:
    """Insert a check after every floating-point op of `graph`."""
    for node in list(graph.nodes):
        spec = node.meta.get("spec")
        floating = isinstance(spec, TensorSpec) and spec.dtype.is_floating_point
        if node.op != "call_function" or not floating or "phase" not in node.meta:
            continue
        after = node.next if node.next.target is round_to_half_ else node
        with graph.inserting_after(after):
            where = f"{node.meta['scope'] or 'model'}, {node.meta['phase'].value} pass"
            graph.call_function(require_finite, (node, str(node.target), where, *_untouched_inputs(node)))


def _untouched_inputs(node: torch.fx.Node) -> list[torch.fx.Node]:
    written = written_arguments(node)
    return [argument for argument in node.all_input_nodes if argument not in written]


def require_finite(result: Any, op: str, where: str, *inputs: Any) -> None:
    """Raise if `result` is not finite although every floating-point input is.

    Raises:
        Error: names the op and the module it belongs to.
    """
    if not _all_finite(result) and all(_all_finite(value) for value in inputs):
        raise Error(
            f"Floating point exception: {op} ({where}) made an infinity or a NaN out of finite numbers.",
            type="poplar_application_runtime_error",
        )


def _all_finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(torch.isfinite(value).all())
