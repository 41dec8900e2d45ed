"""BERT's pre-training on four IPUs: a pipeline with recomputation, tied embeddings, LAMB and half precision.

In the style of Graphcore's public BERT for PopTorch: a block for each encoder layer, the masked words' and the next
sentence's losses computed in the model, the projection to the vocabulary in slices, optimiser state off the chip.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any, Sequence

import torch
import torch.nn.functional as F
from program import Program, command_line, run
from torch import Tensor, nn

import poptorch

PADDING, CLASS, SEPARATOR, MASK, WORDS = 0, 1, 2, 3, 4  # special tokens, and the first word


@dataclass(frozen=True)
class Config:
    """Sizes of the network and of its training; tuples have one entry for each IPU."""

    vocabulary: int
    width: int
    heads: int
    length: int
    masked: int
    layers_per_ipu: tuple[int, ...]
    vocabulary_slices: int
    dropout: float
    micro_batch: int
    accumulation: int
    learning_rate: float
    memory_proportions: tuple[float, ...]


SIZES = {
    "tiny": Config(64, 32, 2, 24, 3, (1, 1, 1, 1), 2, 0.0, 2, 9, 0.03, (0.3, 0.3, 0.3, 0.3)),
    "base": Config(30_528, 768, 12, 128, 20, (3, 3, 3, 3), 2, 0.1, 16, 256, 0.006, (0.15, 0.25, 0.25, 0.25)),
    "full": Config(30_528, 1024, 16, 128, 20, (3, 7, 7, 7), 4, 0.1, 8, 512, 0.006, (0.15, 0.25, 0.25, 0.25)),
}


class Embedding(nn.Module):
    """The sum of word, place and segment, normalised: ids [N, L] to [N, L, width]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width, padding_idx=PADDING)
        self.places = nn.Embedding(config.length, config.width)
        self.segments = nn.Embedding(2, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("numbers", torch.arange(config.length), persistent=False)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        x = self.words(ids) + self.places(self.numbers) + self.segments(segments)
        return self.dropout(self.norm(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One encoder layer, normalised after each half: [N, L, width] to the same."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_attention, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm_attention(x + self.dropout(self.mix(self._attention(x, mask))))
        return self.norm(x + self.dropout(self.shrink(F.gelu(self.grow(x)))))  # type: ignore[no-any-return]

    def _attention(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads) + mask
        mixed: Tensor = self.dropout(scores.softmax(dim=-1)) @ value
        return mixed.transpose(1, 2).reshape(rows, length, width)


class Heads(nn.Module):
    """Logits of the masked words [N, M, vocabulary] and of the next sentence [N, 2].

    The projection has the embedding's weight, and runs in slices of the vocabulary: its whole result would need
    too much memory at once.
    """

    def __init__(self, config: Config, words: Tensor) -> None:
        super().__init__()
        width = config.width
        self.pooler, self.next = nn.Linear(width, width), nn.Linear(width, 2)
        self.transform, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.words, self.bias = words, nn.Parameter(torch.zeros(config.vocabulary))  # the words' is the embedding's
        self.slices = config.vocabulary_slices

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        chosen = F.one_hot(positions, x.shape[1]).to(x.dtype) @ x  # a gather that the matrix units do
        hidden = self.norm(F.gelu(self.transform(chosen)))
        mode = poptorch.MatMulSerializationMode.OutputChannels
        logits = poptorch.serializedMatMul(hidden, self.words.t(), mode, self.slices)
        return logits + self.bias, self.next(torch.tanh(self.pooler(x[:, 0])))


class Bert(nn.Module):
    """Returns the two losses [] of a micro-batch and their sum, which is what is trained."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(sum(config.layers_per_ipu)))
        self.heads = Heads(config, self.embedding.words.weight)
        self.apply(_initialise)
        self._place(config.layers_per_ipu)

    def _place(self, layers_per_ipu: Sequence[int]) -> None:
        """A block for each layer; the heads come back to IPU 0, where their weight is."""
        poptorch.BeginBlock(self.embedding, "Embedding", ipu_id=0)
        ipus = [ipu for ipu, count in enumerate(layers_per_ipu) for _ in range(count)]
        for number, (layer, ipu) in enumerate(zip(self.layers, ipus)):
            layer.register_forward_hook(lambda module, inputs, output: poptorch.recomputationCheckpoint(output))
            poptorch.BeginBlock(layer, f"Encoder{number}", ipu_id=ipu)
        poptorch.BeginBlock(self.heads, "Heads", ipu_id=0)

    def forward(
        self, ids: Tensor, segments: Tensor, attended: Tensor, positions: Tensor, masked: Tensor, is_random: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embedding(ids, segments)
        mask = (1 - attended[:, None, None, :].to(x.dtype)) * -10_000
        for layer in self.layers:
            x = layer(x, mask)
        words, following = self.heads(x, positions)
        words_loss = F.cross_entropy(words.flatten(0, 1).float(), masked.flatten(), ignore_index=PADDING)
        next_loss = F.cross_entropy(following.float(), is_random.flatten())
        return words_loss, next_loss, poptorch.identity_loss(words_loss + next_loss, reduction="none")


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def training_options(config: Config, replicas: int = 1, sharded_state: bool = False) -> poptorch.Options:
    """A pipeline whose optimiser state is off the chip, shared out over the replicas if asked for."""
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    options.replicationFactor(replicas)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.Training.gradientAccumulation(config.accumulation)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    state = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(state.useReplicatedTensorSharding(sharded_state))
    proportions = enumerate(config.memory_proportions)
    options.setAvailableMemoryProportion({f"IPU{ipu}": proportion for ipu, proportion in proportions})
    options.randomSeed(42)
    return options


def make_optimizer(model: nn.Module, config: Config, name: str, precision: str) -> torch.optim.Optimizer:
    """LAMB or AdamW without decay of biases and norms; half-precision gradients are scaled."""
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    half = torch.float16 if precision == "16" else torch.float32
    kwargs: dict[str, Any] = {
        "lr": config.learning_rate,
        "eps": 1e-6,
        "loss_scaling": 128.0 if precision == "16" else 1.0,
        "accum_type": half,
        "first_order_momentum_accum_type": half,
        "second_order_momentum_accum_type": torch.float32,
    }
    if name == "adamw":
        return poptorch.optim.AdamW(groups, **kwargs)
    return poptorch.optim.LAMB(groups, bias_correction=False, **kwargs)


def sentences(config: Config, rows: int, seed: int) -> tuple[Tensor, ...]:
    """Pairs of sentences that count up; half of the second ones do not go on where the first ones end.

    Gives ids, segments, attended [rows, L], positions and ids of the masked words [rows, M], is_random [rows].
    """
    generator = torch.Generator().manual_seed(seed)
    words, place = config.vocabulary - WORDS, torch.arange(config.length)
    half = torch.randint(config.length // 3, (config.length - 3) // 2 + 1, (rows, 1), generator=generator)
    first, other = torch.randint(words // 8, (2, rows, 1), generator=generator)
    is_random = torch.randint(2, (rows, 1), generator=generator)
    second = torch.where(is_random == 1, other, first + half)
    ids = WORDS + torch.where(place <= half, first + place - 1, second + place - half - 2) % words
    ids[:, 0] = CLASS
    ids[(place == half + 1) | (place == 2 * half + 2)] = SEPARATOR
    attended = place < 2 * half + 3
    ids[~attended] = PADDING
    chance = torch.rand(rows, config.length, generator=generator).masked_fill(ids < WORDS, -1)
    positions = chance.topk(config.masked, dim=1).indices.sort(dim=1).values
    masked = ids.gather(1, positions)
    segments = (place > half + 1) & attended
    return ids.scatter(1, positions, MASK), segments.long(), attended.long(), positions, masked, is_random.flatten()


def arguments() -> argparse.ArgumentParser:
    """The program's command line."""
    parser = command_line(__doc__, SIZES)
    parser.add_argument("--optimizer", choices=("lamb", "adamw"), default="lamb")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="each on IPUs of its own")
    parser.add_argument("--sharded-state", action="store_true", help="share the optimiser state out over replicas")
    return parser


def program(parsed: argparse.Namespace) -> Program:
    """What the command line asks for."""
    config = SIZES[parsed.size]
    options = training_options(config, parsed.replicas, parsed.sharded_state)
    options.Precision.setPartialsType(torch.float16 if parsed.precision == "16" else torch.float32)

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = Bert(config)
        model = model.half() if parsed.precision == "16" else model
        return model, make_optimizer(model, config, parsed.optimizer, parsed.precision)

    return Program(build, options, lambda rows, seed: sentences(config, rows, seed), config.micro_batch)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train or profile; return the losses."""
    parsed = arguments().parse_args(argv)
    return run(program(parsed), parsed)


if __name__ == "__main__":
    main()
