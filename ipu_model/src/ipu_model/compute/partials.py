"""Half partials: long reductions of fp16 contractions lose accuracy because partial sums are stored as fp16.

An approximation: chunks are summed in fp32, and the running total is rounded after each and clipped unless `clips` is
off. How the hardware's planner cuts a reduction is not published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.graph import is_half
from ipu_model.compute.rounding import Overflow, clip_to_half_, round_to_half_

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
    if groups == 1:
        return x[:, chunk] if dim else x[chunk]
    shape = x.shape
    apart = x.reshape(*shape[:dim], groups, -1, *shape[dim + 1 :])
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
