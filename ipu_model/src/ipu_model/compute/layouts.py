"""Operations whose operands have another memory layout in a replay than they had in the trace.

Strides of fake tensors are not always those of the values. A view may then have to copy. PyTorch makes the operands of
group normalisation dense before the kernel, because the kernel ignores strides; whether that needs a copy is decided
while the program is traced. When the program is replayed, strides of dimensions of size 1 can differ from the traced
ones, and the kernel then rejects its input.
"""

from __future__ import annotations

import torch
import torch.fx
from torch import Tensor
from torch._prims_common import suggest_memory_format

from ipu_model.capture.aliases import storage_roots, written_roots

_VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})
_FORWARD = torch.ops.aten.native_group_norm.default
_BACKWARD = torch.ops.aten.native_group_norm_backward.default


def let_views_copy(graph: torch.fx.Graph) -> None:
    """Let a view copy if its operand's layout differs from the one that was traced.

    The result of mse_loss_backward, for instance, has the strides of its second operand on fake tensors, but is always
    dense when it is computed. Views of storage that is written to must stay views.
    """
    roots, written = storage_roots(graph), written_roots(graph)
    for node in graph.nodes:
        if node.target in _VIEWS and roots[node] not in written:
            node.target = torch.ops.aten.reshape.default


def lay_out_group_norms(graph: torch.fx.Graph) -> None:
    """Make the operands of group normalisations dense; this must be the last pass, because it adds nodes."""
    for node in list(graph.nodes):
        with graph.inserting_before(node):
            if node.target is _FORWARD:
                node.args = (graph.call_function(dense, node.args[:1]), *node.args[1:])
            elif node.target is _BACKWARD:
                gradient, x, *rest = node.args
                laid_out = graph.call_function(dense, (x,))
                node.args = (graph.call_function(dense_like, (gradient, laid_out)), laid_out, *rest)


def dense(x: Tensor) -> Tensor:
    """Return the values without gaps, in the order (channels last or first) that their strides suggest."""
    return dense_like(x, x)


def dense_like(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the values of `gradient` without gaps, in the order of `x`."""
    return gradient.contiguous(memory_format=suggest_memory_format(x))
