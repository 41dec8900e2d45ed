"""Tensors that a program prints: a replay writes them to stderr when it computes them (execution reference, 11.1)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
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

    Tensors of more than `summarise_threshold` elements (0: never) show `edge_items` at each end. 0 removes the limit of
    `max_line_width`. `digits` are significant ones of the largest number; with 0, columns are not aligned.
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
    shown, edge, cut = tensor.detach(), layout.edge_items, [False] * tensor.dim()
    if 0 < layout.summarise_threshold < tensor.numel():
        cut = [size > 2 * edge for size in tensor.shape]
        for dim, size in enumerate(tensor.shape):
            if cut[dim]:
                shown = torch.cat((shown.narrow(dim, 0, edge), shown.narrow(dim, size - edge, edge)), dim)
    write = _writer(shown, layout)
    if not cut:
        return f"{title}: {write(shown.item())}"

    def lines(items: list[Any], depth: int, taken: int) -> list[str]:
        """Return the lines of one bracket; the first one starts behind `taken` characters, the others are indented."""
        if depth + 1 == len(cut):
            words = [write(item) for item in items]
            if cut[depth]:
                words.insert(edge, _GAP)
            return _row(words, depth, taken, layout)
        inner = depth + 1
        blocks = [lines(item, inner, inner) for item in items]
        if cut[depth]:
            blocks.insert(edge, [_GAP])
        within = [line for first, *rest in blocks for line in (" " * inner + first, *rest)]
        return [layout.open_bracket, *within, " " * depth + layout.close_bracket]

    return f"{title}: " + "\n".join(lines(shown.tolist(), 0, len(title) + 2))


def _row(words: list[str], depth: int, taken: int, layout: PrintLayout) -> list[str]:
    if not words:
        return [layout.open_bracket + layout.close_bracket]
    words = [word + layout.separator for word in words[:-1]] + [words[-1] + layout.close_bracket]
    lines, line, width = [], layout.open_bracket + words[0], taken + len(layout.open_bracket + words[0])
    for word in words[1:]:
        if layout.max_line_width and width + len(word) > layout.max_line_width:
            lines.append(line)
            line, width = " " * (depth + 2), depth + 2
        line, width = line + word, width + len(word)
    return [*lines, line]


def _writer(shown: Tensor, layout: PrintLayout) -> Callable[[float], str]:
    style = _format_specification(shown, layout)
    texts = [format(value, style) for value in shown.flatten().tolist()]
    width = max(map(len, texts), default=0) if layout.digits else 0
    return lambda value: format(value, style).rjust(width)


def _format_specification(shown: Tensor, layout: PrintLayout) -> str:
    digits = layout.digits
    if not shown.is_floating_point():
        return "d"
    if layout.float_format == "none" or digits == 0:
        return f".{digits or 6}g"
    magnitudes = shown[shown.isfinite()].double().abs()
    largest = float(magnitudes.max()) if magnitudes.numel() else 0.0
    exponent = math.floor(math.log10(largest)) if largest > 0 else 0
    in_fixed_range = layout.float_format == "auto" and _SMALLEST_FIXED <= exponent < digits
    if layout.float_format == "fixed" or in_fixed_range:
        return f".{max(0, digits - 1 - exponent)}f"
    return f".{digits - 1}e"


def print_where_asked(graph: torch.fx.Graph) -> None:
    """Insert a print after every op of `graph` whose mark says so; call it after every other pass."""
    for node in list(graph.nodes):
        printed = info_of(node).marks.printed
        if printed is not None:
            with graph.inserting_after(node):
                graph.call_function(print_tensor, (node, printed.title, *printed.layout))


def print_tensor(tensor: Tensor, title: str, *layout: Any) -> None:
    """Write `tensor` to the `sys.stderr` of this moment, so that notebooks show it and programs can redirect it."""
    if sys.stderr is not None:  # it is None under pythonw
        sys.stderr.write(printed_text(title, tensor, PrintLayout(*layout)) + "\n")
        sys.stderr.flush()
