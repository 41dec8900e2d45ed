"""What a call gives back: tensors in forward's own structure, which refuse `backward()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ipu_model.compute.results import RETURNED_DTYPE
from ipu_model.graph import Graph
from poptorch._impl import createPoptorchError


def present(graph: Graph, results: Sequence[Tensor]) -> Any:
    """Put computed results and compile-time constants into the structure that forward returned."""
    computed = iter(results)
    returned = [output for output in graph.outputs if not output.anchored]
    leaves = [next(computed) if output.node is not None else _copied(output.value) for output in returned]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            leaf.__dict__.update(backward=_refuse_backward, __getstate__=_no_state)
    return graph.rebuild_outputs(leaves)


def _copied(value: Any) -> Any:
    """Give every call its own copy of a tensor that is known since compilation."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(RETURNED_DTYPE.get(value.dtype, value.dtype), copy=True)


def _no_state() -> None:
    """Let outputs be pickled as plain tensors: files of them load without PopTorch."""


def synthetic(inputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Return inputs as a device without host I/O makes them: normal numbers, zeros for integers."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(t.shape, generator=generator).to(t.dtype) if t.is_floating_point() else torch.zeros_like(t)
        for t in inputs
    ]


def _refuse_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise createPoptorchError(
        "backward() cannot be called explicitly on outputs of a PopTorch model: poptorch.trainingModel runs "
        "the backward pass and the weight update itself, in every call."
    )
