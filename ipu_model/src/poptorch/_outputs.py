"""What a call gives back: tensors in forward's own structure, which refuse `backward()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ipu_model.graph import Graph
from poptorch._errors import createPoptorchError


def present(graph: Graph, results: Sequence[Tensor]) -> Any:
    """Put computed results and compile-time constants into the structure that forward returned."""
    computed = iter(results)
    leaves = [next(computed) if output.node is not None else output.value for output in graph.outputs]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            leaf.__dict__["backward"] = _refuse_backward
    return graph.rebuild_outputs(leaves)


def synthetic(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return inputs as a device without host I/O generates them: normal numbers, zeros where integers are wanted."""
    return [torch.randn_like(t) if t.is_floating_point() else torch.zeros_like(t) for t in inputs]


def _refuse_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise createPoptorchError(
        "backward() cannot be called explicitly on outputs of a PopTorch model: poptorch.trainingModel runs the backward "
        "pass and the weight update itself, in every call."
    )
