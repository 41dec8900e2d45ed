"""Captures and runs small modules for the engine's tests, without the poptorch layer above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model.batching import Batching, Returns
from ipu_model.capture import capture
from ipu_model.capture.graph import Graph, TensorSpec
from ipu_model.compute.replay import Arithmetic
from ipu_model.compute.session import Reduction, Session
from ipu_model.compute.threads import Threads
from ipu_model.step import Placement


class ByIpu:
    """Places a block on the IPU (and stage) of its `ipu_id`."""

    def place(self, user_id: str | None, ipu_id: int | None) -> Placement:
        return Placement(block=user_id or "", stage=ipu_id or 0, ipu=ipu_id or 0)

    def use_auto_id(self) -> None:
        pass


class Net(nn.Module):
    """A module that computes `function(self, *inputs)` with the submodules and parameters that it is given by name."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def flat(outputs: Any) -> tuple[list[Any], Any]:
    if isinstance(outputs, (tuple, list)):
        return list(outputs), tuple
    return [outputs], lambda leaves: leaves[0]


def traced(module: nn.Module, *inputs: Tensor, training: bool = True) -> Graph:
    """Capture `module` for micro-batches like `inputs`."""
    specs = [TensorSpec.of(tensor) for tensor in inputs]
    return capture(module, specs, lambda m, tensors: m(*tensors), flat, training=training, placer=ByIpu())


def ops_of(graph: Graph) -> list[torch.fx.Node]:
    return [node for node in graph.ops.nodes if node.op == "call_function"]


def session_of(
    module: nn.Module,
    *inputs: Tensor,
    training: bool = True,
    arithmetic: Arithmetic | None = None,
    threads: Threads | None = None,
) -> Session:
    """Return a session that runs `module` with its weights on one micro-batch like `inputs` at a time."""
    session = Session(
        traced(module, *inputs, training=training),
        Batching(),
        Returns(),
        arithmetic=arithmetic or Arithmetic(),
        reduction=Reduction(),
        seed=0,
        watched_updates=(),
        automatic_loss_scaling=None,
        threads=threads or Threads(torch.get_num_threads()),
        replica_groups={},
    )
    session.upload(dict(module.state_dict()))
    return session


class KeepGradients:
    """Stands in for the optimiser of a session: keeps the gradients of the last update."""

    def __init__(self, session: Session) -> None:
        self.gradients: dict[str, Tensor] = {}
        session.update = self._keep

    def _keep(self, gradients: Mapping[str, Tensor], scale: float) -> None:
        self.gradients = dict(gradients)
