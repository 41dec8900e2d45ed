"""torchvision's vision transformer ViT-B/16 on four IPUs, split by the names of its layers; smoothed labels."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Sequence

import torch
import torch.nn.functional as F
from program import Program, command_line, run
from torch import Tensor, nn
from torchvision.models import VisionTransformer, vit_b_16

import poptorch

SMOOTHING = 0.1


@dataclass(frozen=True)
class Config:
    """Sizes of the training; ``first_layers`` are the encoder layers with which IPUs 1, 2... begin."""

    pixels: int
    classes: int
    first_layers: tuple[int, ...]
    micro_batch: int
    accumulation: int
    learning_rate: float
    memory_proportion: float


SIZES = {
    "tiny": Config(32, 8, (1, 2, 3), 2, 8, 0.001, 0.6),
    "full": Config(224, 1000, (3, 6, 9), 16, 64, 0.001, 0.3),
}


def network(size: str) -> VisionTransformer:
    """The network of that size: torchvision's ViT-B/16 at full size."""
    config = SIZES[size]
    if size == "full":
        return vit_b_16(weights=None, num_classes=config.classes)
    return VisionTransformer(config.pixels, 8, 4, 2, 32, 64, num_classes=config.classes)


class WithLoss(nn.Module):
    """Images [N, 3, H, W] and labels [N] to logits [N, classes] and the loss []."""

    def __init__(self, model: VisionTransformer, first_layers: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        layers = model.encoder.layers
        for layer in layers:
            layer.register_forward_hook(lambda module, inputs, output: poptorch.recomputationCheckpoint(output))
        poptorch.BeginBlock(model.conv_proj, "Patches", ipu_id=0)
        for ipu, number in enumerate(first_layers, 1):
            name = f"encoder_layer_{number}"
            poptorch.BeginBlock(layers.get_submodule(name), name, ipu_id=ipu)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(images)
        return logits, smoothed_loss(logits.float(), labels)


def smoothed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with labels of which a tenth is shared out over all classes."""
    logarithms = logits.log_softmax(dim=-1)
    likelihood = F.nll_loss(logarithms, labels)
    loss = (1 - SMOOTHING) * likelihood - SMOOTHING * logarithms.mean()
    return poptorch.identity_loss(loss, reduction="none")


def training_options(config: Config, precision: str) -> poptorch.Options:
    """A pipeline with the optimiser state off the chip; updates of half-precision weights round stochastically."""
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.Training.gradientAccumulation(config.accumulation)
    ipus = range(len(config.first_layers) + 1)
    options.setAvailableMemoryProportion({f"IPU{ipu}": config.memory_proportion for ipu in ipus})
    options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    options.Precision.enableStochasticRounding(precision == "16")
    options.randomSeed(42)
    return options


def make_optimizer(model: nn.Module, config: Config, precision: str) -> torch.optim.Optimizer:
    """AdamW that adds up gradients and keeps its moments in float32; half-precision gradients are scaled."""
    return poptorch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        weight_decay=0.05,
        loss_scaling=128.0 if precision == "16" else 1.0,
        accum_type=torch.float32,
        first_order_momentum_accum_type=torch.float32,
        second_order_momentum_accum_type=torch.float32,
    )


def gratings(config: Config, rows: int, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Noisy stripes [rows, 3, H, W] whose direction and width tell their class [rows]."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(config.classes, (rows,), generator=generator)
    angle, waves = math.pi * labels / config.classes, 2 + 3 * (labels % 2)
    line = torch.linspace(-1, 1, config.pixels)
    y, x = torch.meshgrid(line, line, indexing="ij")
    across = x * angle.cos()[:, None, None] + y * angle.sin()[:, None, None]
    stripes = torch.sin(math.pi * waves[:, None, None] * across)
    noise = 0.3 * torch.randn(rows, 3, config.pixels, config.pixels, generator=generator)
    return (stripes[:, None] + noise).to(dtype), labels


def arguments() -> argparse.ArgumentParser:
    """The program's command line."""
    return command_line(__doc__, SIZES)


def program(parsed: argparse.Namespace) -> Program:
    """What the command line asks for."""
    config, dtype = SIZES[parsed.size], torch.float16 if parsed.precision == "16" else torch.float32

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = WithLoss(network(parsed.size), config.first_layers).to(dtype)
        return model, make_optimizer(model, config, parsed.precision)

    options = training_options(config, parsed.precision)
    return Program(build, options, lambda rows, seed: gratings(config, rows, seed, dtype), config.micro_batch)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train or profile; return the losses."""
    parsed = arguments().parse_args(argv)
    return run(program(parsed), parsed)


if __name__ == "__main__":
    main()
