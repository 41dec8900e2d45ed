"""Which tensor of a training model is differentiated: torch's own losses mark themselves, one mark must remain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx
import torch.nn.functional as F
from torch import Tensor

from ipu_model.capture.tracing import Trace
from ipu_model.errors import Error

# The losses that PopTorch recognises; huber, Gaussian NLL and the multi-class margin losses are not among them.
LOSS_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset({
    F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.cross_entropy, F.nll_loss, F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits, F.kl_div, F.poisson_nll_loss, F.hinge_embedding_loss,
    F.cosine_embedding_loss, F.soft_margin_loss, F.multilabel_soft_margin_loss, F.margin_ranking_loss,
    F.triplet_margin_loss, F.ctc_loss, torch.ctc_loss,
})  # fmt: skip

_ADVICE = "Wrap the value to differentiate in poptorch.identity_loss(value, reduction='none'|'sum'|'mean') in forward."


def final_loss(trace: Trace, outputs: Sequence[Tensor]) -> Tensor:
    """Return the one marked loss that no other marked loss depends on.

    Marks that no output of `forward` depends on count only if there are no others: a loss need not be returned.

    Raises:
        Error: no such mark, or several independent ones.
    """
    every = {_node(trace, loss): loss for loss in trace.loss_marks}
    wanted = _ancestors([node for node in (trace.node_of(t) for t in outputs) if node is not None])
    marked = {node: loss for node, loss in every.items() if node in wanted} or every
    if not marked:
        raise Error(f"Couldn't find a loss in graph! {_ADVICE}")
    demoted = _ancestors([source for node in marked for source in node.all_input_nodes])
    remaining = [loss for node, loss in marked.items() if node not in demoted]
    if len(remaining) > 1:
        names = ", ".join(str(node) for node in marked if node not in demoted)
        raise Error(f"Multiple independent losses found in graph ({names}). {_ADVICE}")
    return remaining[0]


def _node(trace: Trace, tensor: Tensor) -> torch.fx.Node:
    node = trace.node_of(tensor)
    if node is None:
        raise Error("A loss was computed from tensors that are not part of the traced model.")
    return node


def _ancestors(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return `nodes` and everything they are computed from."""
    seen: set[torch.fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending.extend(node.all_input_nodes)
    return seen
