"""What the published programs share: blocks, checkpoints, losses, machines, networks of torchvision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch
from ipu_model.batching import Batching
from ipu_model.capture import capture
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph, TensorSpec
from ipu_model.errors import Error
from ipu_model.optimiser import OptimiserSpec
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.hardware import system_named
from ipu_model.predict.program import Program, Recomputation

HALF, FLOAT = torch.float16, torch.float32


class Classifier(nn.Module):
    """A network with what the published programs return: loss [], logits [N, classes] and accuracy [] in per cent.

    With `normalises`, images come as bytes and are cast and normalised (as ImageNet is) on the device.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, *, normalises: bool = False, dtype: torch.dtype = HALF) -> None:
        super().__init__()
        self.model = model
        self.normalises = normalises
        for name, values in (("mean", [0.485, 0.456, 0.406]), ("std", [0.229, 0.224, 0.225])):
            self.register_buffer(name, torch.tensor(values, dtype=dtype).view(3, 1, 1))

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.normalises:
            images = (images.to(self.mean.dtype) / 255 - self.mean) / self.std
        logits = self.model(images)
        loss = poptorch.identity_loss(F.cross_entropy(logits, labels), "none")
        accuracy = (logits.argmax(1) == labels).float().mean() * 100
        return loss, logits, accuracy


def begin_block(layer: nn.Module, ipu: int) -> None:
    poptorch.BeginBlock(layer, ipu_id=ipu)


def checkpoint(layer: nn.Module) -> None:
    """Keep the output of `layer` when the rest is computed again."""
    layer.register_forward_hook(lambda module, args, output: poptorch.recomputationCheckpoint(output))


def captured(module: nn.Module, *inputs: TensorSpec, training: bool = True) -> Graph:
    def flat(outputs: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
        if isinstance(outputs, (tuple, list)):
            return list(outputs), tuple
        return [outputs], lambda leaves: leaves[0]

    placer = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    return capture(module, list(inputs), lambda m, t: m(*t), flat, training=training, placer=placer)


def images(batch: int, channels: int, size: int, dtype: torch.dtype) -> tuple[TensorSpec, TensorSpec]:
    """Describe images [batch, channels, size, size] and their labels [batch]."""
    return TensorSpec.contiguous((batch, channels, size, size), dtype), integers(batch)


def integers(*shape: int) -> TensorSpec:
    return TensorSpec.contiguous(shape, torch.int32)


def networks() -> Any:
    """Return `torchvision.models`. `Any`: its networks have layers as attributes, which programs mark by name."""
    try:
        import torchvision
    except ImportError as problem:
        words = "The published programs use torchvision's networks, and it cannot be imported"
        raise Error(f"{words}: {problem}") from problem
    return torchvision.models


def program_of(
    graph: Graph,
    batching: Batching,
    machine: str = "",
    *,
    half_partials: bool = True,
    proportions: dict[int, float] | None = None,
    **options: Any,
) -> Program:
    """Return the program of `graph`, for training if it has an optimiser, on the chips of the machine of that name.

    `proportions` are the available memory proportions of its IPUs; `options` are other fields of `Program`.
    """
    if machine:
        options["system"] = system = system_named(machine)
        options["settings"] = CostSettings(
            device=Device(system.chip), half_partials=half_partials, available_memory_proportion=proportions or {}
        )
    return Program(step_of(graph), "optimiser" in options, batching, **options)


def on_pod16(
    graph: Graph, batching: Batching, optimiser: OptimiserSpec, proportions: Iterable[float], name: str, **options: Any
) -> Program:
    """Return a training program that recomputes in its pipeline, on a Bow Pod16; `proportions` of its IPUs in order."""
    options |= {"optimiser": optimiser, "recomputation": Recomputation.PIPELINE, "name": name}
    return program_of(graph, batching, "Bow-POD16", proportions=dict(enumerate(proportions)), **options)
