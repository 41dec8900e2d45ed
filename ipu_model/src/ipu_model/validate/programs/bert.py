"""BERT as Graphcore's public application pretrains it, and its encoder for inference.

The layers are those of Hugging Face's model, with a layer norm after each half of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ipu_model.batching import Batching
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.predict.hardware import system_named
from ipu_model.predict.program import Location, Locations, Program, Recomputation
from ipu_model.validate.programs.attention import SelfAttention
from ipu_model.validate.programs.building import (
    begin_block,
    captured,
    checkpoint,
    hint,
    integers,
    lamb,
    marked_loss,
    settings_on,
)

MASKED_TOKENS = 20
SEQUENCES_PER_PACK = 1.17


@dataclass(frozen=True)
class BertSize:
    """The dimensions of one BERT; `layers` counts those of each IPU."""

    hidden: int
    heads: int
    layers: tuple[int, ...]
    vocabulary: int = 30522
    positions: int = 512


BASE = BertSize(768, 12, (0, 4, 4, 4))
LARGE = BertSize(1024, 16, (3, 7, 7, 7))


class Embeddings(nn.Module):
    """Words, positions and token types, added and normalised: [N, S] to [N, S, hidden]."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.positions, size.hidden)
        self.types = nn.Embedding(2, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor, positions: Tensor, types: Tensor) -> Tensor:
        """Return the embedded tokens."""
        embedded = self.words(tokens) + self.types(types) + self.positions(positions)
        found: Tensor = self.dropout(self.norm(embedded))
        return found


class EncoderLayer(nn.Module):
    """Self-attention and the feed-forward network of one layer."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.attention = SelfAttention(size.hidden, size.heads)
        self.attention_norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.wide = nn.Linear(size.hidden, 4 * size.hidden)
        self.narrow = nn.Linear(4 * size.hidden, size.hidden)
        self.dropout = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(size.hidden, eps=1e-12)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return [N, S, hidden]."""
        attended = self.attention_norm(self.attention(hidden, mask) + hidden)
        found: Tensor = self.norm(self.dropout(self.narrow(F.gelu(self.wide(attended)))) + attended)
        return found


class Encoder(nn.Module):
    """Embeddings and layers: tokens [N, S] to [N, S, hidden].

    `sequences` numbers the sequence that each token belongs to, 0 for padding. With `packed`, a row holds several
    sequences that do not see each other.
    """

    def __init__(self, size: BertSize, *, packed: bool = False) -> None:
        super().__init__()
        self.packed = packed
        self.embeddings = Embeddings(size)
        self.layers = nn.ModuleList(EncoderLayer(size) for _ in range(sum(size.layers)))

    def forward(self, tokens: Tensor, positions: Tensor, types: Tensor, sequences: Tensor) -> Tensor:
        """Return the last layer's output."""
        hidden: Tensor = self.embeddings(tokens, positions, types)
        hidden_from = sequences[:, None, None, :] == 0
        if self.packed:
            hidden_from = hidden_from | (sequences[:, None, :, None] != sequences[:, None, None, :])
        mask = hidden_from.to(hidden.dtype) * -10000.0
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden


class Heads(nn.Module):
    """The pooler with its next-sentence classifier, and the prediction of masked tokens by the tied decoder."""

    def __init__(self, size: BertSize, words: nn.Embedding, slices: int) -> None:
        super().__init__()
        self.slices = slices
        self.pooler = nn.Linear(size.hidden, size.hidden)
        self.follows = nn.Linear(size.hidden, 2)
        self.transform = nn.Linear(size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.words = words
        self.bias = nn.Parameter(torch.zeros(size.vocabulary))

    def forward(self, hidden: Tensor, masked_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores of masked tokens [N x masked, vocabulary] and of the next sentence [N, 2]."""
        chosen = F.one_hot(masked_positions.long(), hidden.shape[1]).to(hidden.dtype)
        masked = torch.matmul(chosen, hidden).flatten(0, 1)
        transformed = self.norm(F.gelu(self.transform(masked)))
        scores = torch.matmul(transformed, self.words.weight.t())
        if self.slices > 1:
            hint(scores, "serialized", {"mode": "OutputChannels", "factor": self.slices, "keep_precision": False})
        follows = self.follows(torch.tanh(self.pooler(hidden[:, 0])))
        return scores + self.bias, follows


class Pretraining(nn.Module):
    """BERT with both losses of its pretraining."""

    def __init__(self, size: BertSize, slices: int, *, packed: bool) -> None:
        super().__init__()
        self.encoder = Encoder(size, packed=packed)
        self.heads = Heads(size, self.encoder.embeddings.words, slices)

    def forward(
        self, tokens: Tensor, positions: Tensor, types: Tensor, sequences: Tensor, masked_positions: Tensor,
        masked_labels: Tensor, follows: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return the total loss and its two parts, all []."""
        hidden = self.encoder(tokens, positions, types, sequences)
        scores, next_scores = self.heads(hidden, masked_positions)
        words = F.cross_entropy(scores, masked_labels.flatten().long(), ignore_index=0).float()
        sentences = F.cross_entropy(next_scores, follows.long()).float()
        return marked_loss(words + sentences), words, sentences


@lru_cache(maxsize=2)
def bert_pretraining(size: BertSize, batch: int, length: int = 128, *, slices: int = 1, packed: bool = False) -> Graph:
    """Return pretraining in fp16 over four IPUs; embeddings and heads are on IPU 0, each layer's output is kept.

    `slices` is the factor by which the decoder's product is serialised.
    """
    module = Pretraining(size, slices, packed=packed).half()
    begin_block(module.encoder.embeddings, 0)
    ipus = [ipu for ipu, count in enumerate(size.layers) for _ in range(count)]
    for layer, ipu in zip(module.encoder.layers, ipus, strict=True):
        begin_block(layer, ipu)
        checkpoint(layer)
    begin_block(module.heads, 0)
    tokens, masked = integers(batch, length), integers(batch, MASKED_TOKENS)
    return captured(module, tokens, tokens, tokens, tokens, masked, masked, integers(batch))


def bert_base_program() -> Program:
    """Return BERT-Base's pretraining on a Bow Pod16: four replicas of four IPUs."""
    return _pretraining(bert_pretraining(BASE, 32), 512, dict.fromkeys(range(4), 0.25), "bert-base")


def bert_large_program(*, replicas: int = 4) -> Program:
    """Return BERT-Large's pretraining with packed sequences on a Bow Pod16."""
    proportions = {0: 0.15, 1: 0.25, 2: 0.25, 3: 0.25}
    return _pretraining(bert_pretraining(LARGE, 8, slices=2, packed=True), 1752, proportions, "bert-large", replicas)


def _pretraining(
    graph: Graph, accumulation: int, proportions: dict[int, float], name: str, replicas: int = 4
) -> Program:
    machine = system_named("Bow-POD16")
    return Program(
        step=step_of(graph), training=True, batching=Batching(1, accumulation, replicas), optimiser=lamb(),
        system=machine, settings=settings_on(machine, proportions=proportions), name=name,
        recomputation=Recomputation.PIPELINE, locations=Locations(optimiser=Location(on_chip=False, sharded=True)),
    )  # fmt: skip


@lru_cache(maxsize=2)
def bert_inference(batch: int, length: int = 256) -> Graph:
    """Return BERT-Base's encoder in fp32 on one IPU."""
    tokens = integers(batch, length)
    return captured(Encoder(BASE).eval(), tokens, tokens, tokens, tokens, training=False)


def bert_inference_program(batch: int) -> Program:
    """Return BERT-Base in fp32 on one C600 card, sequence length 256."""
    card = system_named("C600-server")
    return Program(
        step=step_of(bert_inference(batch)), training=False, batching=Batching(), system=card,
        settings=settings_on(card, half_partials=False), name="bert-base-inference",
    )  # fmt: skip
