"""A U-Net on two IPUs: the way down on one, the way up on the other, with Dice and cross entropy as its loss."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Sequence

import torch
import torch.nn.functional as F
from program import Program, command_line, run
from torch import Tensor, nn

import poptorch

GROUPS = 8  # of the normalisation: it needs no statistics over a micro-batch of one or two images
CLASSES = 2


@dataclass(frozen=True)
class Config:
    """Sizes of the network and of its training; ``channels`` from the largest picture to the smallest."""

    pixels: int
    channels: tuple[int, ...]
    micro_batch: int
    accumulation: int
    learning_rate: float
    memory_proportion: float


SIZES = {
    "tiny": Config(32, (8, 16, 16), 2, 4, 0.003, 0.6),
    "full": Config(512, (32, 64, 128, 256, 512), 1, 24, 0.0003, 0.2),
}


class Convolutions(nn.Module):
    """Two convolutions, each normalised and rectified: [N, before, H, W] to [N, after, H, W]."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, after, 3, padding=1, bias=False) for channels in (before, after))
        self.norms = nn.ModuleList(nn.GroupNorm(GROUPS, after) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip((self.first, self.second), self.norms):
            x = F.relu(norm(convolution(x)))
        return x


class Up(nn.Module):
    """Twice the height and width, joined with what the way down had there: [N, C, H, W] to [N, C', 2 H, 2 W]."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(before, after, 2, stride=2)
        self.convolutions = Convolutions(2 * after, after)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        return self.convolutions(torch.cat([skipped, self.enlarge(x)], dim=1))  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Pictures [N, 1, H, W] and classes of their pixels [N, H, W] to Dice, cross entropy and their sum."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        sizes = list(zip(config.channels, config.channels[1:]))
        self.first = Convolutions(1, config.channels[0])
        self.downs = nn.ModuleList(Convolutions(before, after) for before, after in sizes)
        self.ups = nn.ModuleList(Up(after, before) for before, after in reversed(sizes))
        self.head = nn.Conv2d(config.channels[0], CLASSES, 1)
        # Each part keeps only its result for the backward pass, and computes the rest again there.
        for part in [self.first, *self.downs, *self.ups]:
            part.register_forward_hook(lambda module, inputs, output: poptorch.recomputationCheckpoint(output))
        poptorch.BeginBlock(self.first, "Down", ipu_id=0)
        poptorch.BeginBlock(self.ups[0], "Up", ipu_id=1)

    def forward(self, pictures: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.first(pictures)
        skipped = []
        for down in self.downs:
            skipped.append(x)
            x = down(F.max_pool2d(x, 2))
        for up in self.ups:
            x = up(x, skipped.pop())
        # In float32: a sum over all pixels of a picture passes the largest number of float16.
        logits = self.head(x).float()
        dice, entropy = dice_loss(logits, classes), F.cross_entropy(logits, classes)
        return dice, entropy, poptorch.identity_loss(dice + entropy, reduction="none")


def dice_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """One minus the overlap of what is predicted and what is there, of class 1: 2 |P T| / (|P| + |T|), smoothed."""
    predicted, there = logits.softmax(dim=1)[:, 1].flatten(1), classes.flatten(1).to(logits.dtype)
    overlap = 2 * (predicted * there).sum(1) + 1
    return (1 - overlap / (predicted.sum(1) + there.sum(1) + 1)).mean()


def training_options(config: Config, strategy: str) -> poptorch.Options:
    """Pipelined or sharded over the two IPUs."""
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    stages = (poptorch.Stage("Down").ipu(0), poptorch.Stage("Up").ipu(1))
    strategies = {"pipelined": poptorch.PipelinedExecution, "sharded": poptorch.ShardedExecution}
    options.setExecutionStrategy(strategies[strategy](*stages))
    options.Training.gradientAccumulation(config.accumulation)
    options.setAvailableMemoryProportion({f"IPU{ipu}": config.memory_proportion for ipu in range(2)})
    return options


def make_optimizer(model: nn.Module, config: Config, precision: str) -> torch.optim.Optimizer:
    """Adam with moments in float32; half-precision gradients are scaled."""
    scaling = 128.0 if precision == "16" else 1.0
    return poptorch.optim.AdamW(model.parameters(), lr=config.learning_rate, loss_scaling=scaling)


def cells(config: Config, rows: int, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Noisy pictures [rows, 1, H, W] of three bright ellipses, and which pixels are theirs [rows, H, W]."""
    generator = torch.Generator().manual_seed(seed)
    line = torch.linspace(-1, 1, config.pixels)
    y, x = torch.meshgrid(line, line, indexing="ij")
    numbers = torch.rand(rows, 3, 4, 1, 1, generator=generator)
    centre_x, centre_y = (1.4 * numbers[:, :, axis] - 0.7 for axis in (0, 1))
    radius_x, radius_y = (0.15 + 0.3 * numbers[:, :, axis] for axis in (2, 3))
    inside = ((x - centre_x) / radius_x) ** 2 + ((y - centre_y) / radius_y) ** 2 < 1
    classes = inside.any(dim=1)
    pictures = classes.float() + 0.5 * torch.randn(rows, config.pixels, config.pixels, generator=generator)
    return pictures[:, None].to(dtype), classes.long()


def arguments() -> argparse.ArgumentParser:
    """The program's command line."""
    parser = command_line(__doc__, SIZES)
    parser.add_argument("--strategy", choices=("pipelined", "sharded"), default="pipelined")
    return parser


def program(parsed: argparse.Namespace) -> Program:
    """What the command line asks for."""
    config, dtype = SIZES[parsed.size], torch.float16 if parsed.precision == "16" else torch.float32

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = UNet(config).to(dtype)
        return model, make_optimizer(model, config, parsed.precision)

    options = training_options(config, parsed.strategy)
    return Program(build, options, lambda rows, seed: cells(config, rows, seed, dtype), config.micro_batch)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train or profile; return the losses."""
    parsed = arguments().parse_args(argv)
    return run(program(parsed), parsed)


if __name__ == "__main__":
    main()
