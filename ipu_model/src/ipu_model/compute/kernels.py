"""Kernels that replace ops before a replay: half partials, and recurrent layers in half precision or fused.

Half partials are an approximation: long reductions of fp16 contractions lose accuracy because partial sums are stored
as fp16. Chunks are summed in fp32, and the running total is rounded after each and clipped unless `clips` is off. How
the hardware's planner cuts a reduction is not published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.device_ops import recurrent_layers as layers
from ipu_model.capture.device_ops.recurrent_layers import Kind
from ipu_model.capture.graph import info_of, is_half
from ipu_model.capture.torch_private import mkldnn_enabled
from ipu_model.compute.rounding import Overflow, clip_to_half_, nearest, round_to_half_

aten = torch.ops.aten

# Input channels summed between two stores of a partial: one pass of the fp16 AMP unit takes 16, four passes
# are chained before the partial goes to memory. An approximation, see above.
CHUNK = 64


def use_half_partials(graph: torch.fx.Graph, overflow: Overflow) -> None:
    """Replace the fp16 contractions of `graph` (before `to_containers`) by their half-partials versions."""
    for node in graph.nodes:
        replacement = _REPLACEMENTS.get(node.target)
        if replacement is not None and any(is_half(operand) for operand in node.all_input_nodes):
            node.target = replacement
            node.kwargs = {**node.kwargs, "clips": overflow is Overflow.CLIP}


def _accumulated(parts: Iterator[Tensor], clips: bool) -> Tensor:
    stored_ = clip_to_half_ if clips else round_to_half_
    total = stored_(next(parts))
    for part in parts:
        total = stored_(total.add_(part))
    return total


def _chunks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, max(length, 1), size))


def mm(a: Tensor, b: Tensor, *, clips: bool = True) -> Tensor:
    """Multiply `[m, k]` by `[k, n]`, or `[b, m, k]` by `[b, k, n]`, with half partials along k."""
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    return _accumulated((multiply(a[..., c], b[..., c, :]) for c in _chunks(a.shape[-1], CHUNK)), clips)


def mv(a: Tensor, b: Tensor, *, clips: bool = True) -> Tensor:
    return mm(a, b.unsqueeze(1), clips=clips).squeeze(1)


def dot(a: Tensor, b: Tensor, *, clips: bool = True) -> Tensor:
    return mm(a.unsqueeze(0), b.unsqueeze(1), clips=clips).view(())


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, clips: bool = True) -> Tensor:
    product = mm(a, b, clips=clips).mul_(alpha)
    # As in PyTorch, a bias with the factor 0 does not count, even if it is NaN: programs pass `torch.empty`.
    return product if beta == 0 else product.add_(bias, alpha=beta)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any, clips: bool = True) -> Tensor:
    """Convolve with half partials along the input channels of each group; `geometry` as aten's op has it."""
    _stride, _padding, _dilation, transposed, _output_padding, groups = geometry
    channels = _channels(x, weight, groups, in_groups=transposed)
    total = _accumulated((aten.convolution(xs, ws, None, *geometry) for xs, ws in channels), clips)
    return total if bias is None else total.add_(bias.view(1, -1, *[1] * (x.dim() - 2)))


def _channels(x: Tensor, weight: Tensor, groups: int, *, in_groups: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut the channels of each group alike: a weight has those of all groups first, or of one group second."""
    for c in _chunks(x.shape[1] // groups, CHUNK):
        yield _in_groups(x, 1, groups, c), _in_groups(weight, 0, groups, c) if in_groups else weight[:, c]


def _in_groups(x: Tensor, dim: int, groups: int, chunk: slice) -> Tensor:
    apart = x.reshape(*x.shape[:dim], groups, -1, *x.shape[dim + 1 :])
    return (apart[:, :, chunk] if dim else apart[:, chunk]).flatten(dim, dim + 1)


def convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *settings: Any, clips: bool = True
) -> tuple[Tensor | None, ...]:
    """Differentiate a convolution: half partials along output channels, and samples for the weights."""
    *geometry, (wanted_input, wanted_weight, wanted_bias) = settings
    _stride, _padding, _dilation, transposed, _output_padding, groups = geometry

    def backward(g: Tensor, xs: Tensor, w: Tensor, mask: list[bool]) -> tuple[Tensor, ...]:
        return tuple(aten.convolution_backward(g, xs, w, bias_sizes, *geometry, mask))

    results: list[Tensor | None] = [None, None, None]
    if wanted_input:
        parts = _channels(gradient, weight, groups, in_groups=not transposed)
        results[0] = _accumulated((backward(g, x, w, [True, False, False])[0] for g, w in parts), clips)
    if wanted_weight:
        # A partial of a weight gradient sums at least as many terms as a chunk in the forward pass, `CHUNK` channels
        # times the taps of the kernel: every sample adds a term for each position of a tap.
        taps, positions = weight[0, 0].numel(), (x if transposed else gradient)[0, 0].numel()
        samples = max(1, -(-CHUNK * taps // positions))
        pieces = zip(gradient.split(samples), x.split(samples))
        results[1] = _accumulated((backward(g, xs, weight, [False, True, False])[1] for g, xs in pieces), clips)
    if wanted_bias:
        results[2] = gradient.sum(dim=[0, *range(2, gradient.dim())])
    return tuple(results)


_REPLACEMENTS: dict[object, Callable[..., Any]] = {
    aten.mm.default: mm,
    aten.mv.default: mv,
    aten.dot.default: dot,
    aten.bmm.default: mm,
    aten.addmm.default: addmm,
    aten.baddbmm.default: addmm,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
}


# --- recurrent layers

_Kernel: TypeAlias = Callable[..., tuple[Tensor, ...]]


def choose_layer_kernels(graph: torch.fx.Graph, overflow: Overflow) -> None:
    """Give the recurrent layers of `graph` (before `to_containers`) the arithmetic of their element type."""
    is_fused = torch.backends.mkldnn.is_available() and mkldnn_enabled()
    for node in graph.nodes:
        if node.target in _COMPUTED_BY:
            specs = info_of(node).spec
            if isinstance(specs, tuple) and specs[0] is not None and specs[0].dtype is torch.float16:
                node.target = _in_half(*_COMPUTED_BY[node.target], overflow)
            elif is_fused and node.target in _FUSED and node.args[_PROJECTION] is None:
                node.target = _FUSED[node.target]


def _in_half(compute: _Kernel, kind: Kind, overflow: Overflow) -> _Kernel:
    """Return a kernel that rounds what each step stores to float16; sums over all steps are not rounded in it."""
    return lambda *args: compute(kind, *args, stored=nearest(overflow))


_COMPUTED_BY: dict[object, tuple[_Kernel, Kind]] = {
    op: (compute, kind)
    for name, kind in layers.KINDS.items()
    for op, compute in zip(layers.LAYER_OPS[name], (layers.forward, layers.backward))
}

_MKLDNN_LSTM = 2  # the mode of mkldnn_rnn_layer


def fused_lstm(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer of an LSTM as PyTorch does on this CPU; what it keeps for backward is opaque."""
    x, hidden, cell, w_x, w_h, b_x, b_h, _, reverse = arguments
    zeros = w_x.new_zeros(len(w_x))
    biases = [zeros if bias is None else bias for bias in (b_x, b_h)]
    given = [t.contiguous() for t in (x, w_x, w_h, *biases, hidden, cell)]
    with torch.enable_grad():  # without it the layer keeps nothing for backward
        hiddens, _, last_cell, workspace = aten.mkldnn_rnn_layer(
            *given, reverse, [], _MKLDNN_LSTM, w_h.shape[1], 1, True, False, False, True
        )
    return hiddens, last_cell, workspace


def fused_lstm_backward(*arguments: Any) -> tuple[Tensor, ...]:
    d_hiddens, d_last_cell, x, hidden, cell, w_x, w_h, _, hiddens, last_cell, workspace, reverse, wanted = arguments
    bias, empty = w_x.new_zeros(len(w_x)), x.new_empty(0)
    given = [t.contiguous() for t in (x, w_x, w_h, bias, bias, hidden, cell, hiddens)]
    d_hiddens = torch.zeros_like(hiddens) if d_hiddens is None else d_hiddens.contiguous()
    d_last_cell = torch.zeros_like(last_cell) if d_last_cell is None else d_last_cell.contiguous()
    last = (hiddens[0 if reverse else -1], last_cell, d_hiddens, torch.zeros_like(last_cell), d_last_cell)
    d_x, d_w_x, d_w_h, d_bias, _, d_hidden, d_cell = aten.mkldnn_rnn_layer_backward(
        *given, *last, reverse, _MKLDNN_LSTM, w_h.shape[1], 1, True, True, False, [], False, workspace
    )
    asked = [gradient if want else empty for gradient, want in zip((d_x, d_hidden, d_cell), wanted)]
    return (*asked, d_w_x, d_w_h, d_bias, empty, empty)


_FUSED: dict[object, _Kernel] = dict(zip(layers.LAYER_OPS["lstm"], (fused_lstm, fused_lstm_backward)))
# Where both ops have their projection among their arguments.
_PROJECTION = 7
