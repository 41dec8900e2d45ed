"""The results that a call returns: from which micro-batches, in which order, and of which type.

An output that is constant at compile time is returned once, whatever the output mode.
"""

from __future__ import annotations

import torch
import torch.fx
from torch import Tensor

from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture.graph import Graph, is_random, written_arguments
from ipu_model.compute.rounding import Overflow, nearest

# What the host gets for a device value (executor reference, section 5.4).
RETURNED_DTYPE = {torch.int64: torch.int32, torch.float64: torch.float32}


class Collector:
    """Collects one output of every micro-batch in `[step, replica]` order.

    `dtype` is the element type on the device; `fresh` says whether micro-batch results own their storage; with `once`,
    only one result is kept, because all are the same.
    """

    def __init__(
        self,
        batching: Batching,
        returns: Returns,
        dtype: torch.dtype,
        fresh: bool,
        *,
        once: bool = False,
        overflow: Overflow = Overflow.CLIP,
    ) -> None:
        self._batching, self._returns = batching, returns
        self._dtype, self._fresh, self._once = dtype, fresh, once
        self._to_half_ = nearest(overflow)
        self._kept: dict[tuple[int, int], Tensor] = {}

    def take(self, step: int, replica: int, value: Tensor) -> None:
        """Take the result of replica `replica` in its step `step`."""
        if self._once:
            self._kept = self._kept or {(step, replica): value if self._fresh else value.clone()}
        elif self._returns.keep is Keep.SUM:
            self._add(replica, value)
        elif self._returns.kept(step, self._batching.steps):
            self._kept[step, replica] = value if self._fresh else value.clone()

    def _add(self, replica: int, value: Tensor) -> None:
        total = self._kept.get((0, replica))
        if total is None:
            self._kept[0, replica] = value.clone()
            return
        total += value
        if self._dtype is torch.float16:
            self._to_half_(total)

    def result(self) -> Tensor:
        """Return the collected results as one tensor of the type the host sees."""
        parts = [self._kept[key] for key in sorted(self._kept)]
        if len(parts) > 1:
            parts = [torch.stack(parts) if parts[0].dim() == 0 else torch.cat(parts)]
        return parts[0].to(RETURNED_DTYPE.get(self._dtype, self._dtype))


def constant_outputs(graph: Graph) -> tuple[bool, ...]:
    """Return for each computed output whether it is independent of variables, inputs and random numbers."""
    roots = graph.roots
    varying: set[torch.fx.Node] = set()
    for node in graph.ops.nodes:
        varies = node.op == "placeholder" or is_random(node)
        if varies or any(roots[source] in varying for source in node.all_input_nodes):
            varying.add(roots[node])
            varying.update(roots[written] for written in written_arguments(node))
    return tuple(roots[graph.by_name[o.node]] not in varying for o in graph.outputs if o.node is not None)
