"""The capstone's network: an encoder in the form of BERT that fills in masked words, for one device and in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch

MASK, FIRST_WORD = 0, 1
FIRST_SPREAD = 0.8  # of the first weights, by the square root of the width


@dataclass(frozen=True)
class TransformerSize:
    """The dimensions of the network, and of what it trains on.

    ``length`` is the number of words in a sequence, of which ``masked`` are hidden. ``global_batch`` is the number of
    sequences in a weight update, and no plan may change it. The logits are computed in ``slices`` of the vocabulary.
    """

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    masked: int
    global_batch: int
    slices: int = 1


SMALL = TransformerSize("small", layers=4, width=32, heads=2, vocabulary=16, length=8, masked=2, global_batch=36)
BASE = TransformerSize("base", 12, 768, 12, 30_522, 128, 20, 1024)
LARGE = TransformerSize("large", 24, 1024, 16, 30_522, 128, 20, 1024, slices=2)
SIZES = {size.name: size for size in (SMALL, BASE, LARGE)}


class Embedding(nn.Module):
    """The sum of word and place, normalised: words [N, L] to [N, L, width]."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.length, size.width)
        self.norm = nn.LayerNorm(size.width)

    def forward(self, words: Tensor) -> Tensor:
        return self.norm(self.words(words) + self.places.weight)  # type: ignore[no-any-return]  # a Module's


class TransformerLayer(nn.Module):
    """One encoder layer, normalised after each half: [N, L, width] to the same."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_attention, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_attention(x + self.mix(self._attention(x)))
        return self.norm(x + self.shrink(F.gelu(self.grow(x))))  # type: ignore[no-any-return]  # a Module's

    def _attention(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)).softmax(dim=-1)
        mixed: Tensor = weights @ value
        return mixed.transpose(1, 2).reshape(rows, length, width)


class Head(nn.Module):
    """What the masked words were: [N, L, width] and places [N, M] to logits [N, M, vocabulary].

    The projection has the weight of the word embedding.
    """

    def __init__(self, size: TransformerSize, words: Tensor) -> None:
        super().__init__()
        self.transform, self.norm = nn.Linear(size.width, size.width), nn.LayerNorm(size.width)
        self.words, self.bias = words, nn.Parameter(torch.zeros(size.vocabulary))
        self.slices = size.slices

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        chosen = F.one_hot(places, x.shape[1]).to(x.dtype) @ x  # a gather that the matrix units do
        hidden = self.norm(F.gelu(self.transform(chosen)))
        mode = poptorch.MatMulSerializationMode.OutputChannels
        return poptorch.serializedMatMul(hidden, self.words.t(), mode, self.slices) + self.bias


class Transformer(nn.Module):
    """Words [N, L], places of the masked ones [N, M] and what they were [N, M] to the mean loss []."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.embedding = Embedding(size)
        self.layers = nn.ModuleList(TransformerLayer(size) for _ in range(size.layers))
        self.head = Head(size, self.embedding.words.weight)
        for part in self.modules():
            _initialise(part, FIRST_SPREAD / math.sqrt(size.width))

    def forward(self, words: Tensor, places: Tensor, were: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x, places)
        return F.cross_entropy(logits.flatten(0, 1).float(), were.flatten())


def _initialise(module: nn.Module, spread: float) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=spread)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def sequences(size: TransformerSize, rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return made-up sequences that repeat a random word: words [N, L], places and words of the masked ones [N, M]."""
    generator = torch.Generator().manual_seed(seed)
    repeated = torch.randint(FIRST_WORD, size.vocabulary, (rows, 1), generator=generator).expand(-1, size.length)
    places = torch.rand(rows, size.length, generator=generator).topk(size.masked, dim=1).indices
    return repeated.scatter(1, places, MASK), places, repeated.gather(1, places)


def optimiser_of(model: nn.Module, learning_rate: float = 0.001) -> torch.optim.Optimizer:
    """Return LAMB for a model, whose accumulators have the type of its weights and whose moments are float32."""
    kind = next(model.parameters()).dtype
    scaling = 128.0 if kind == torch.float16 else 1.0
    return poptorch.optim.LAMB(
        model.parameters(),
        lr=learning_rate,
        weight_decay=0.01,
        bias_correction=False,
        loss_scaling=scaling,
        accum_type=kind,
        first_order_momentum_accum_type=torch.float32,
        second_order_momentum_accum_type=torch.float32,
    )
