"""Tensors that a program prints: a replay writes them to stderr whenever it computes them."""

from __future__ import annotations

import sys
from typing import Any

import torch.fx
from torch import Tensor

from ipu_model.graph import Printed
from ipu_model.numerics.printed_text import Layout, printed_text


def print_where_asked(graph: torch.fx.Graph) -> None:
    """Insert a print after every op of `graph` that carries the hint ``printed``; call it after every other pass."""
    for node in list(graph.nodes):
        printed = node.meta.get("hints", {}).get("printed")
        if isinstance(printed, Printed):
            with graph.inserting_after(node):
                graph.call_function(print_tensor, (node, printed.title, *printed.layout))


def print_tensor(tensor: Tensor, title: str, *layout: Any) -> None:
    """Write `tensor` to the `sys.stderr` of this moment, so that notebooks show it and programs can redirect it.

    `layout` are the fields of `Layout`, in order.
    """
    if sys.stderr is not None:  # there is none under pythonw
        sys.stderr.write(printed_text(title, tensor, Layout(*layout)) + "\n")
        sys.stderr.flush()
