"""The network of lesson 12: a language model whose training does not fit on one IPU, and its parts by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch
from ipu_course import engine

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule

WIDTH, HEADS, BLOCKS, WORDS, LENGTH = 512, 8, 8, 8192, 128
FEED_WIDTH = 4 * WIDTH
MICRO_BATCH, ACCUMULATION = 10, 8
RECOMPUTE_ALL = 4  # PopART's RecomputationType: all but what the checkpoints keep
GELU_SLOPE = 1.702

Activation = Callable[[Tensor], Tensor]
BlockForward = Callable[["Block", Tensor], Tensor]


def quick_gelu(x: Tensor) -> Tensor:
    """Return the activation as PyTorch ops: a sigmoid and two products."""
    return x * torch.sigmoid(GELU_SLOPE * x)


class QuickGelu(nn.Module):
    """The activation as a module, so that its result has a name; ``function`` computes it."""

    def __init__(self, function: Activation = quick_gelu) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Weights(nn.Module):
    """How much each word attends to each: queries and keys [N, heads, T, size] to weights [N, heads, T, T]."""

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return torch.softmax(queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5, -1)


class Mix(nn.Module):
    """The weighted mean of the values: weights [N, heads, T, T] and values [N, heads, T, size] to [N, T, width]."""

    def forward(self, weights: Tensor, values: Tensor) -> Tensor:
        return (weights @ values).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Self-attention with its sum: words [N, T, width] to [N, T, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.weights = Weights()
        self.mix = Mix()
        self.out = nn.Linear(width, width)
        self.heads = heads

    def split(self, joined: Tensor) -> tuple[Tensor, ...]:
        """Cut what ``qkv`` returns into queries, keys and values, [N, heads, T, size] each."""
        samples, words, _ = joined.shape
        return tuple(joined.view(samples, words, 3, self.heads, -1).permute(2, 0, 3, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = self.split(self.qkv(self.norm(x)))
        return x + self.out(self.mix(self.weights(queries, keys), values))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """The two wide layers with their sum: words [N, T, width] to [N, T, width]."""

    def __init__(self, width: int, feed_width: int, activation: Activation) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, feed_width)
        self.activation = QuickGelu(activation)
        self.down = nn.Linear(feed_width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.activation(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One of the equal blocks; a ``forward`` of the learner's takes the place of the usual one."""

    def __init__(
        self, width: int, heads: int, feed_width: int, activation: Activation, run: BlockForward | None = None
    ) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.feed = FeedForward(width, feed_width, activation)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return plain_block(self, x) if self.run is None else self.run(self, x)


def plain_block(block: Block, x: Tensor) -> Tensor:
    """Run a block without any checkpoint inside: attention, then the wide layers."""
    return block.feed(block.attention(x))  # type: ignore[no-any-return]


def small_block() -> Block:
    """Return a block that is small enough to compare two ways of running it."""
    return Block(SMALL.width, SMALL.heads, SMALL.feed_widths[0], quick_gelu)


class Embedded(nn.Module):
    """Words [N, T] as numbers to vectors [N, T, width], with their places in the sentence."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(length, width))

    def forward(self, words: Tensor) -> Tensor:
        return self.words(words) + self.places  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Sizes:
    """How large a language model is; ``feed_widths`` has the width of the wide layers of each block."""

    width: int = WIDTH
    heads: int = HEADS
    words: int = WORDS
    length: int = LENGTH
    feed_widths: Sequence[int] = (FEED_WIDTH,) * BLOCKS


SMALL = Sizes(width=32, heads=4, words=64, length=16, feed_widths=(64, 64))


class LanguageModel(nn.Module):
    """Words [N, T] and the words that follow them to the loss []; ``slices`` cuts the last product (0: not at all)."""

    def __init__(
        self,
        sizes: Sizes = Sizes(),
        slices: int = 0,
        block: BlockForward | None = None,
        activation: Activation = quick_gelu,
    ) -> None:
        super().__init__()
        self.embedded = Embedded(sizes.words, sizes.width, sizes.length)
        self.blocks = nn.ModuleList(
            Block(sizes.width, sizes.heads, feed_width, activation, block) for feed_width in sizes.feed_widths
        )
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)
        self.slices = slices

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        x = self.embedded(words)
        for block in self.blocks:
            x = block(poptorch.recomputationCheckpoint(x))  # marks what to keep; without recomputation, all is kept
        x = poptorch.recomputationCheckpoint(x)  # otherwise the last block would run again for the loss
        logits = self.logits(self.norm(x).flatten(0, 1))
        loss: Tensor = poptorch.identity_loss(F.cross_entropy(logits.float(), following.flatten()), reduction="none")
        return loss

    def logits(self, rows: Tensor) -> Tensor:
        """Return the last product, [rows, words], in slices if it has any."""
        weight = self.head.weight.t()
        if not self.slices:
            return rows @ weight
        return poptorch.serializedMatMul(rows, weight, poptorch.MatMulSerializationMode.OutputChannels, self.slices)


def course_options() -> poptorch.Options:
    """Return the options that every program of the lesson begins with."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    return options


def with_recomputation() -> poptorch.Options:
    """Return the same options with recomputation of all but what checkpoints keep."""
    options = course_options()
    options._Popart.set("autoRecomputation", RECOMPUTE_ALL)
    return options


@engine.needs_the_model
def modelled_training(
    network: Callable[[], LanguageModel] = LanguageModel,
    options: poptorch.Options | None = None,
    micro_batch: int = MICRO_BATCH,
    length: int = LENGTH,
) -> ModelledModule:
    """Capture the training of a language model in half precision with AdamW; ``network`` makes it.

    Raises ``poptorch.Error`` when the engine cannot model it.
    """
    with torch.device("meta"):
        module = network().half()
        words = torch.zeros(micro_batch, length, dtype=torch.int32)
        following = torch.zeros(micro_batch, length, dtype=torch.int64)
    optimiser = poptorch.optim.AdamW(module.parameters(), lr=0.001)
    return engine.modelled_module(module, (words, following), options or course_options(), optimiser)


@lru_cache(maxsize=8)
def captured_with(slices: int, activation: Activation) -> ModelledModule:
    """Capture the lesson's program once for each number of slices and each activation."""
    return modelled_training(lambda: LanguageModel(slices=slices, activation=activation))
