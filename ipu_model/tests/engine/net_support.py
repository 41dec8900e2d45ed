"""Captures, runs, costs and memory of small modules for the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import poptorch
from ipu_model.batching import Batching, Returns
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph, TensorSpec, dtype_of
from ipu_model.compute.replay import Arithmetic
from ipu_model.compute.session import Reduction, Session
from ipu_model.compute.threads import Threads
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.costs import Costs, costs_of, total_of
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.memory import memory_of
from ipu_model.predict.profile import IpuMemory, Memory
from ipu_model.predict.program import Program
from ipu_model.step import Step
from published.building import begin_block, captured


class Net(nn.Module):
    """A module that computes `function(self, *inputs)` with the submodules and parameters that it is given by name."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def traced(module: nn.Module, *inputs: Tensor, training: bool = True) -> Graph:
    """Capture `module` for micro-batches like `inputs`."""
    return captured(module, *map(TensorSpec.of, inputs), training=training)


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


# --- costs

SETTINGS = CostSettings()
GC200 = Device()


class Trained(Net):
    """A module with a loss: the sum of its output."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(_with_sum, module=module)


def _with_sum(net: Net, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    output = net.module(*inputs)
    return output, poptorch.identity_loss(output.float(), "sum")


def calling(function: Callable[..., Any], *layers: nn.Module) -> Net:
    return Net(lambda net, *inputs: function(*net.layers, *inputs), layers=nn.ModuleList(layers))


def stepped(module: nn.Module, *inputs: Tensor, training: bool = True) -> Step:
    return step_of(traced(module, *inputs, training=training))


def costed(module: nn.Module, *inputs: Tensor, settings: CostSettings = SETTINGS) -> Costs:
    return costs_of(stepped(Trained(module), *inputs), settings)


def cycles(found: Costs, settings: CostSettings = SETTINGS, **where: Any) -> float:
    return settings.device.total(total_of(found.of(**where)))


# --- memory

HALF, FLOAT = torch.float16, torch.float32
TILES = 1472


def adamw(dtype: torch.dtype) -> OptimiserSpec:
    state = dtype_of(dtype)
    return OptimiserSpec("ADAMW", Hyper(lr=1e-3, weight_decay=0.01), accum_dtype=state, first_dtype=state)


def program_of(graph: Graph, *, accumulation: int = 4, replicas: int = 1, **options: Any) -> Program:
    """Return a training program with plain SGD; `options` are fields of `Program`."""
    settings: dict[str, Any] = {"training": True, "optimiser": OptimiserSpec("SGD1", Hyper(lr=0.1)), **options}
    return Program(step_of(graph), batching=Batching(accumulation=accumulation, replicas=replicas), **settings)


def memory_of_program(program: Program) -> Memory:
    return memory_of(program)


def memory_for(graph: Graph, **options: Any) -> Memory:
    return memory_of_program(program_of(graph, **options))


def total(memory: IpuMemory, *names: str) -> float:
    return sum(category.total_bytes for category in memory.categories if category.name in names)


def on_fullest(memory: IpuMemory, *names: str) -> float:
    return sum(memory.bytes_by_category.get(name, 0.0) for name in names)


def graph_of(module: nn.Module, *inputs: Tensor) -> Graph:
    """Capture a module with the sum of its output as loss."""
    return traced(Trained(module), *inputs)


def linear(ins: int, outs: int, *, batch: int = 8, dtype: torch.dtype = FLOAT) -> Graph:
    return graph_of(nn.Linear(ins, outs, bias=False).to(dtype), torch.zeros(batch, ins, dtype=dtype))


def squares(depth: int, *, width: int = 256, batch: int = 64, ipus: int = 1) -> Graph:
    layers = [nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(inplace=True)) for _ in range(depth)]
    for ipu in range(1, ipus):
        begin_block(layers[ipu * depth // ipus], ipu)
    return graph_of(nn.Sequential(*layers), torch.zeros(batch, width))
