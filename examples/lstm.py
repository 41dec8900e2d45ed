"""An LSTM language model on one IPU: two layers, and one weight for the first and the last layer."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Sequence

import torch
import torch.nn.functional as F
from program import Program, command_line, run
from torch import Tensor, nn

import poptorch


@dataclass(frozen=True)
class Config:
    """Sizes of the network and of its training; ``length`` words are read at a time."""

    vocabulary: int
    width: int
    layers: int
    length: int
    dropout: float
    micro_batch: int
    accumulation: int
    learning_rate: float
    memory_proportion: float


SIZES = {
    "tiny": Config(32, 32, 2, 12, 0.0, 4, 4, 0.02, 0.6),
    "full": Config(10_000, 1024, 2, 64, 0.3, 16, 8, 0.001, 0.2),
}


class LanguageModel(nn.Module):
    """Words [N, L] and those that follow [N, L] to the most likely ones [N, L] and the loss []."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(config.width, config.width, config.layers, batch_first=True, dropout=config.dropout)
        self.head = nn.Linear(config.width, config.vocabulary)
        self.head.weight = self.words.weight
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def forward(self, words: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.lstm(self.dropout(self.words(words)))
        logits = self.head(self.dropout(states))
        loss = F.nll_loss(F.log_softmax(logits.flatten(0, 1).float(), dim=-1), following.flatten())
        return logits.argmax(dim=-1).int(), loss


def training_options(config: Config) -> poptorch.Options:
    """One IPU that adds up gradients."""
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    options.Training.gradientAccumulation(config.accumulation)
    options.setAvailableMemoryProportion({"IPU0": config.memory_proportion})
    options.randomSeed(42)
    return options


def make_optimizer(model: nn.Module, config: Config, precision: str) -> torch.optim.Optimizer:
    """Adam with first moments in the weights' precision; half-precision gradients are scaled."""
    half = torch.float16 if precision == "16" else torch.float32
    return poptorch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        loss_scaling=256.0 if precision == "16" else 1.0,
        accum_type=half,
        first_order_momentum_accum_type=half,
        second_order_momentum_accum_type=torch.float32,
    )


def text(config: Config, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Words [rows, L] and those that follow: four times out of five the one after next, else one of the frequent."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, config.length + 1)
    frequent = (config.vocabulary * torch.rand(shape, generator=generator) ** 3).long()
    jumps = torch.rand(shape, generator=generator) < 0.2
    words = frequent.clone()
    for place in range(1, config.length + 1):
        following = (words[:, place - 1] + 2) % config.vocabulary
        words[:, place] = torch.where(jumps[:, place], frequent[:, place], following)
    return words[:, :-1].contiguous(), words[:, 1:].contiguous()


def arguments() -> argparse.ArgumentParser:
    """The program's command line."""
    return command_line(__doc__, SIZES)


def program(parsed: argparse.Namespace) -> Program:
    """What the command line asks for."""
    config = SIZES[parsed.size]

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model: nn.Module = LanguageModel(config)
        model = model.half() if parsed.precision == "16" else model
        return model, make_optimizer(model, config, parsed.precision)

    options = training_options(config)
    return Program(build, options, lambda rows, seed: text(config, rows, seed), config.micro_batch)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train or profile; return the losses."""
    parsed = arguments().parse_args(argv)
    return run(program(parsed), parsed)


if __name__ == "__main__":
    main()
