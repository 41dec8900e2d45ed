"""Half partials: long reductions of fp16 contractions lose accuracy because partial sums are stored as fp16.

An approximation: the reduction is cut into chunks of `CHUNK` terms, each chunk is summed in fp32 and the running
total is rounded to fp16 after every chunk. How the hardware's planner cuts a reduction depends on the layer's
mapping to tiles and is not published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.graph import TensorSpec
from ipu_model.numerics.rounding import round_to_half_

aten = torch.ops.aten

# Input channels summed between two stores of a partial: one pass of the fp16 AMP unit takes 16, four passes are
# chained before the partial goes to memory. An approximation, see above.
CHUNK = 64


def use_half_partials(graph: torch.fx.Graph) -> None:
    """Replace the fp16 contractions of `graph` (before `to_containers`) by their half-partials versions."""
    for node in graph.nodes:
        replacement = _REPLACEMENTS.get(node.target)
        if replacement is not None and _has_half_operand(node):
            node.target = replacement


def _has_half_operand(node: torch.fx.Node) -> bool:
    specs = [argument.meta.get("spec") for argument in node.all_input_nodes]
    return any(isinstance(spec, TensorSpec) and spec.dtype is torch.float16 for spec in specs)


def _accumulated(parts: Iterator[Tensor]) -> Tensor:
    total = round_to_half_(next(parts))
    for part in parts:
        total = round_to_half_(total.add_(part))
    return total


def _chunks(length: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK))


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Multiply `[m, k]` by `[k, n]` with half partials along k."""
    return _accumulated(torch.mm(a[:, c], b[c]) for c in _chunks(a.shape[1]))


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Multiply `[b, m, k]` by `[b, k, n]` with half partials along k."""
    return _accumulated(torch.bmm(a[:, :, c], b[:, c]) for c in _chunks(a.shape[2]))


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Compute `beta * bias + alpha * (a @ b)` with half partials in the product."""
    return mm(a, b).mul_(alpha).add_(bias, alpha=beta)


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Tensor:  # fmt: skip
    """Convolve with half partials along the input channels of each group."""
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    if groups != 1:
        return _plus_bias(round_to_half_(aten.convolution(x, weight, None, *settings)), bias)
    channels = x.shape[1]
    if transposed:
        total = _accumulated(aten.convolution(x[:, c], weight[c], None, *settings) for c in _chunks(channels))
    else:
        total = _accumulated(aten.convolution(x[:, c], weight[:, c], None, *settings) for c in _chunks(channels))
    return _plus_bias(total, bias)


def _plus_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x.add_(bias.view(1, -1, *[1] * (x.dim() - 2)))


def convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Differentiate a convolution: half partials along output channels (input gradient) and samples (weights')."""

    def backward(g: Tensor, xs: Tensor, w: Tensor, mask: list[bool]) -> tuple[Tensor, ...]:
        settings = (bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask)
        return tuple(aten.convolution_backward(g, xs, w, *settings))

    plain = groups == 1 and not transposed
    wanted_input, wanted_weight, wanted_bias = output_mask
    results: list[Tensor | None] = [None, None, None]
    if not plain:
        return backward(gradient, x, weight, output_mask)
    if wanted_input:
        results[0] = _accumulated(
            backward(gradient[:, c], x, weight[c], [True, False, False])[0] for c in _chunks(gradient.shape[1])
        )
    if wanted_weight:
        parts = zip(gradient.split(1), x.split(1))
        results[1] = _accumulated(backward(g, xs, weight, [False, True, False])[1] for g, xs in parts)
    if wanted_bias:
        results[2] = gradient.sum(dim=[0, *range(2, gradient.dim())])
    return tuple(results)


_REPLACEMENTS: dict[object, Callable[..., Any]] = {
    aten.mm.default: mm,
    aten.bmm.default: bmm,
    aten.addmm.default: addmm,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
}
