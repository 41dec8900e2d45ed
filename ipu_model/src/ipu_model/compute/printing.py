"""Tensors that a program prints: a replay writes them to stderr whenever it computes them.

The text has brackets for every dimension, aligned columns, and long tensors cut short (execution reference, 11.1).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.capture.graph import info_of

_GAP = "..."
# The smallest power of ten that the automatic format still writes in fixed notation.
_SMALLEST_FIXED = -4


@dataclass(frozen=True)
class PrintLayout:
    """How a tensor is written; the defaults are those of `poptorch.ipu_print_tensor`.

    Tensors of more than `summarise_threshold` elements (0: never) show `edge_items` at each end of a dimension. Lines
    have at most `max_line_width` characters (0: no limit). `digits` are significant digits of the largest number; 0
    writes every number as short as possible, without aligning columns. `float_format` is `auto`, `fixed`, `scientific`
    or `none`.
    """

    summarise_threshold: int = 1000
    edge_items: int = 3
    max_line_width: int = 80
    digits: int = 4
    float_format: str = "auto"
    separator: str = ","
    open_bracket: str = "("
    close_bracket: str = ")"


def printed_text(title: str, tensor: Tensor, layout: PrintLayout) -> str:
    """Return the lines of `tensor` (any shape and type), the first one after `title`; no line feed at the end."""
    summarised = 0 < layout.summarise_threshold < tensor.numel()
    edge = layout.edge_items if summarised else None
    shown = _shown(tensor.detach(), edge)
    write = _writer(shown, layout)
    nested = shown.tolist() if tensor.dim() else None
    if nested is None:
        return f"{title}: {write(shown.item())}"
    cut = [edge is not None and size > 2 * edge for size in tensor.shape]
    lines = _lines(nested, 0, cut, _Writing(layout, write, edge or 0), len(title) + 2)
    return f"{title}: " + "\n".join(lines)


def _shown(tensor: Tensor, edge: int | None) -> Tensor:
    """Return `tensor` with the middle of its long dimensions left out."""
    if edge is None:
        return tensor
    for dim, size in enumerate(tensor.shape):
        if size > 2 * edge:
            ends = (tensor.narrow(dim, 0, edge), tensor.narrow(dim, size - edge, edge))
            tensor = torch.cat(ends, dim)
    return tensor


@dataclass(frozen=True)
class _Writing:
    layout: PrintLayout
    write: Callable[[float], str]
    edge: int


def _lines(items: Sequence[object], depth: int, cut: list[bool], writing: _Writing, taken: int) -> list[str]:
    """Return the lines of one bracket at `depth`; its first line starts behind `taken` characters.

    Lines after the first carry their own indentation.
    """
    layout = writing.layout
    if depth + 1 == len(cut):
        return _row(items, depth, cut[depth], writing, taken)
    inner = depth + 1
    parts: list[str] = []
    for number, item in enumerate(items):
        if cut[depth] and number == writing.edge:
            parts.append(" " * inner + _GAP)
        assert isinstance(item, list)
        first, *rest = _lines(item, inner, cut, writing, inner)
        parts += [" " * inner + first, *rest]
    if cut[depth] and not items:
        parts.append(" " * inner + _GAP)
    return [layout.open_bracket, *parts, " " * depth + layout.close_bracket]


def _row(items: Sequence[object], depth: int, cut: bool, writing: _Writing, taken: int) -> list[str]:
    """Return one row of elements, broken after separators if it is too long."""
    layout = writing.layout
    words = [writing.write(item) for item in items]  # type: ignore[arg-type]  # the leaves of tolist() are numbers
    if cut:
        words.insert(writing.edge, _GAP)
    if not words:
        return [layout.open_bracket + layout.close_bracket]
    words = [word + layout.separator for word in words[:-1]] + [words[-1] + layout.close_bracket]
    lines, line, width = [], layout.open_bracket, taken + len(layout.open_bracket)
    indent = " " * (depth + 2)
    empty = True
    for word in words:
        if layout.max_line_width and not empty and width + len(word) > layout.max_line_width:
            lines.append(line)
            line, width = indent, len(indent)
        line, width, empty = line + word, width + len(word), False
    return [*lines, line]


def _writer(shown: Tensor, layout: PrintLayout) -> Callable[[float], str]:
    """Return how each element of `shown` is written."""
    write = _floats(shown, layout) if shown.is_floating_point() else _whole
    if layout.digits == 0 or not shown.numel():
        return write
    width = max(len(write(value)) for value in shown.flatten().tolist())
    return lambda value: write(value).rjust(width)


def _whole(value: float) -> str:
    return str(int(value))


def _floats(shown: Tensor, layout: PrintLayout) -> Callable[[float], str]:
    digits = layout.digits
    if layout.float_format == "none" or digits == 0:
        return lambda value: f"{value:.{digits or 6}g}"
    exponent = _exponent(shown)
    fixed = layout.float_format == "fixed"
    if fixed or (layout.float_format == "auto" and _SMALLEST_FIXED <= exponent < digits):
        decimals = max(0, digits - 1 - exponent)
        return lambda value: f"{value:.{decimals}f}"
    return lambda value: f"{value:.{digits - 1}e}"


def _exponent(shown: Tensor) -> int:
    """Return the power of ten of the largest finite magnitude; 0 without any."""
    magnitudes = shown[shown.isfinite()].double().abs()
    largest = float(magnitudes.max()) if magnitudes.numel() else 0.0
    return math.floor(math.log10(largest)) if largest > 0 else 0


def print_where_asked(graph: torch.fx.Graph) -> None:
    """Insert a print after every op of `graph` whose mark says so; call it after every other pass."""
    for node in list(graph.nodes):
        printed = info_of(node).marks.printed
        if printed is not None:
            with graph.inserting_after(node):
                graph.call_function(print_tensor, (node, printed.title, *printed.layout))


def print_tensor(tensor: Tensor, title: str, *layout: Any) -> None:
    """Write `tensor` to the `sys.stderr` of this moment, so that notebooks show it and programs can redirect it.

    `layout` are the fields of `PrintLayout`, in order.
    """
    if sys.stderr is not None:  # it is None under pythonw
        sys.stderr.write(printed_text(title, tensor, PrintLayout(*layout)) + "\n")
        sys.stderr.flush()
