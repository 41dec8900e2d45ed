"""The programs whose hardware measurements are published, rebuilt from their descriptions.

torchvision is imported for its ResNets, here and nowhere else in the engine.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ipu_model import tracing
from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture import capture
from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.graph import Graph, TensorSpec, dtype_of
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.device import CostSettings
from ipu_model.predict.hardware import system_named
from ipu_model.predict.program import Program, Recomputation
from ipu_model.step import FLOAT16, FLOAT32, Placement

HALF, FLOAT = torch.float16, torch.float32
MLPERF_CHECKPOINTS = ("layer1.0", "layer1.2", "layer2.0", "layer2.2", "layer3.0", "layer3.3")


class Classifier(nn.Module):
    """A network with what the published programs return: loss, logits and accuracy in per cent.

    With `normalises`, images come as bytes and are cast and normalised on the device.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, *, normalises: bool = False, dtype: torch.dtype = HALF) -> None:
        super().__init__()
        self.model = model
        self.normalises = normalises
        # ImageNet's, as the published program has them.
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406], dtype=dtype).view(3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225], dtype=dtype).view(3, 1, 1))

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss [], logits [N, classes] and accuracy []."""
        if self.normalises:
            images = (images.to(self.mean.dtype) / 255 - self.mean) / self.std
        logits = self.model(images)
        loss = F.cross_entropy(logits, labels).clone()  # the copy is what identity_loss(..., "none") records
        trace = tracing.current()
        if trace is not None:
            trace.mark_loss(loss)
        accuracy = (logits.argmax(1) == labels).float().mean() * 100
        return loss, logits, accuracy


class Digits(nn.Module):
    """The network of the pipelining tutorial: images [N, 1, 28, 28] to logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU())
        self.layer3 = nn.Sequential(nn.Flatten(), nn.Linear(320, 256), nn.ReLU())
        self.layer4 = nn.Linear(256, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, 10]."""
        logits: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(images))))
        return logits


class ByIpu:
    """Places a block on the stage and IPU of its number."""

    def place(self, user_id: str | None, ipu_id: int | None) -> Placement:
        """Return the place of block `ipu_id`."""
        return Placement(block=user_id or "", stage=ipu_id or 0, ipu=ipu_id or 0)

    def use_auto_id(self) -> None:
        """Do nothing: blocks have no automatic names here."""


def begin_block(layer: nn.Module, ipu: int) -> None:
    """Start a block on `ipu` whenever `layer` is called, as `poptorch.BeginBlock` does."""

    def enter(module: nn.Module, args: Any) -> None:
        trace = tracing.current()
        if trace is not None:
            trace.begin_block(None, ipu)

    layer.register_forward_pre_hook(enter)


def checkpoint(layer: nn.Module) -> None:
    """Keep the output of `layer` when the rest is computed again, as `poptorch.recomputationCheckpoint` does."""

    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        trace = tracing.current()
        if trace is not None:
            trace.hint(output, "recomputation_checkpoint", True)

    layer.register_forward_hook(keep)


def captured(module: nn.Module, *inputs: TensorSpec, training: bool = True) -> Graph:
    """Return the graph of `module` for one micro-batch of such inputs."""
    return capture(module, list(inputs), lambda m, t: m(*t), _flat, training=training, placer=ByIpu())


def _flat(outputs: Any) -> tuple[list[Any], Any]:
    if isinstance(outputs, (tuple, list)):
        return list(outputs), tuple
    return [outputs], lambda leaves: leaves[0]


def images(batch: int, channels: int, size: int, dtype: torch.dtype) -> tuple[TensorSpec, TensorSpec]:
    """Return descriptions of images [batch, channels, size, size] and of their labels [batch]."""
    shape = (batch, channels, size, size)
    return TensorSpec.contiguous(shape, dtype), TensorSpec.contiguous((batch,), torch.int32)


def torchvision_model(name: str) -> nn.Module:
    """Return a torchvision network with fresh weights.

    Raises:
        Error: torchvision is not installed.
    """
    try:
        import torchvision
    except ImportError as problem:
        raise Error(
            f"The published programs use torchvision's networks, and it cannot be imported: {problem}"
        ) from problem
    network: nn.Module = torchvision.models.get_model(name)
    return network


@lru_cache(maxsize=8)
def day03(dtype: torch.dtype = HALF, batch: int = 64, *, eight_bit: bool = False) -> Graph:
    """Return ResNet-101 on 64 x 64 images, cut before layer3[8]."""
    network: Any = torchvision_model("resnet101")
    begin_block(network.layer3[8], 1)
    module = Classifier(network, normalises=eight_bit, dtype=dtype).to(dtype)
    return captured(module, *images(batch, 3, 64, torch.uint8 if eight_bit else dtype))


@lru_cache(maxsize=2)
def mlperf_resnet50(*, checkpoints: bool = True) -> Graph:
    """Return ResNet-50 on 224 x 224 byte images, micro-batch 20, fp16.

    The checkpoints are those of the published configuration.
    """
    network: Any = torchvision_model("resnet50")
    for name in MLPERF_CHECKPOINTS if checkpoints else ():
        checkpoint(network.get_submodule(name))
    return captured(Classifier(network, normalises=True).half(), *images(20, 3, 224, torch.uint8))


@lru_cache(maxsize=1)
def small_resnet50() -> Graph:
    """Return ResNet-50 on eight 64 x 64 images in fp32, its last group of blocks on IPU 1."""
    network: Any = torchvision_model("resnet50")
    begin_block(network.layer4, 1)
    return captured(Classifier(network, dtype=FLOAT), *images(8, 3, 64, FLOAT))


@lru_cache(maxsize=2)
def digits(*, training: bool = True) -> Graph:
    """Return the tutorial's network over four IPUs in fp32: micro-batch 40 with a loss, or 8 for inference."""
    network = Digits()
    for ipu, layer in enumerate((network.layer1, network.layer2, network.layer3, network.layer4)):
        begin_block(layer, ipu)
    if not training:
        return captured(network.eval(), images(8, 1, 28, FLOAT)[0], training=False)
    return captured(Classifier(network, dtype=FLOAT), *images(40, 1, 28, FLOAT))


def adamw(dtype: torch.dtype) -> OptimiserSpec:
    """Return the published program's AdamW: half accumulators and first moments for a half model."""
    hyper = Hyper(lr=1e-3, weight_decay=0.01)
    return OptimiserSpec("ADAMW", hyper, loss_scaling=1000.0, accum_dtype=dtype_of(dtype), first_dtype=dtype_of(dtype))


def day03_program(
    *, dtype: torch.dtype = HALF, accumulation: int = 8, iterations: int = 1, eight_bit: bool = False
) -> Program:
    """Return one row of the day-03 ladder."""
    return Program(
        step=step_of(day03(dtype, eight_bit=eight_bit)), training=True, batching=Batching(iterations, accumulation),
        optimiser=adamw(dtype), recomputation=Recomputation.PIPELINE, name="day03-resnet101",
    )  # fmt: skip


def mlperf_program() -> Program:
    """Return MLPerf's submission: 16 replicas of one IPU in 8 host processes, micro-batch 20, accumulation 10."""
    momentum = OptimiserSpec("SGD1", Hyper(lr=0.1, momentum=0.9, weight_decay=1e-4), accum_dtype=FLOAT16)
    return Program(
        step=step_of(mlperf_resnet50()), training=True, batching=Batching(1, 10, 2), processes=8, optimiser=momentum,
        system=system_named("POD16"), recomputation=Recomputation.ALL, name="mlperf-resnet50",
        settings=CostSettings(half_partials=True, available_memory_proportion={0: 0.15}),
    )  # fmt: skip


def digits_program() -> Program:
    """Return the pipelining tutorial's training program: accumulation 10, 10 device iterations, all outputs."""
    return Program(
        step=step_of(digits()), training=True, batching=Batching(10, 10), returns=Returns(Keep.ALL),
        optimiser=adamw(FLOAT), recomputation=Recomputation.PIPELINE, name="mnist-pipeline",
    )  # fmt: skip


def digits_inference_program() -> Program:
    """Return the pipelining tutorial's test program: 100 device iterations."""
    return Program(
        step=step_of(digits(training=False)), training=False, batching=Batching(100), returns=Returns(Keep.ALL),
        name="mnist-inference",
    )  # fmt: skip


def small_resnet50_program() -> Program:
    """Return day 02's program: two replicas of two IPUs, accumulation 3."""
    momentum = OptimiserSpec("SGD1", Hyper(lr=0.1, momentum=0.9), accum_dtype=FLOAT32)
    return Program(
        step=step_of(small_resnet50()), training=True, batching=Batching(1, 3, 2), optimiser=momentum,
        recomputation=Recomputation.PIPELINE, name="day02-resnet50",
    )  # fmt: skip
