"""Published programs of transformers: BERT, ViT and Swin, as the vendor's applications run them.

BERT's and ViT's layers are those of Hugging Face's models. B8 to B14 and F4 are the programs' numbers in the ids of
`published.toml`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ipu_model.batching import Batching
from ipu_model.capture.graph import Graph
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.program import Location, Locations, Program, Recomputation
from ipu_model.step import FLOAT16, Serialisation
from published import building
from published.building import FLOAT, HALF, Classifier, begin_block, captured, checkpoint, images, integers, program_of

MASKED_TOKENS = 20
SEQUENCES_PER_PACK = 1.17
# Half accumulators, moments in single precision.
LAMB = OptimiserSpec("LAMB", Hyper(lr=1e-3, weight_decay=0.01), loss_scaling=1000.0, accum_dtype=FLOAT16)


class Layer(nn.Module):
    """Self-attention and the feed-forward network of one layer, with a norm before each or after it: [N, S, hidden].

    Queries, keys and values have linear layers of their own; two products surround a softmax and dropout. `mask` is
    added to the scores [N, heads, S, S].
    """

    def __init__(self, hidden: int, heads: int, *, norms_first: bool = False) -> None:
        super().__init__()
        self.heads, self.norms_first = heads, norms_first
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden) for _ in range(4))
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm, self.dropout = nn.LayerNorm(hidden, eps=1e-12), nn.Dropout(0.1)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.norms_first:
            attended = self._attended(self.attention_norm(hidden), mask) + hidden
            return self._fed_forward(self.norm(attended)) + attended
        attended = self.attention_norm(self._attended(hidden, mask) + hidden)
        output: Tensor = self.norm(self._fed_forward(attended) + attended)
        return output

    def _attended(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        by_head = (*hidden.shape[:2], self.heads, hidden.shape[2] // self.heads)
        query, key, value = (
            layer(hidden).view(by_head).permute(0, 2, 1, 3) for layer in (self.query, self.key, self.value)
        )
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores + mask
        weights = self.dropout(scores.softmax(dim=-1))
        context = torch.matmul(weights, value).permute(0, 2, 1, 3).reshape(hidden.shape)
        attended: Tensor = self.dropout(self.output(context))
        return attended

    def _fed_forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.dropout(self.narrow(F.gelu(self.wide(hidden))))
        return output


# --- BERT


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


class Encoder(nn.Module):
    """Embeddings of words, positions and token types, then layers: tokens [N, S] to [N, S, hidden].

    `sequences` numbers the sequence that each token belongs to, 0 for padding. With `packed`, a row holds several
    sequences that do not see each other.
    """

    def __init__(self, size: BertSize, *, packed: bool = False) -> None:
        super().__init__()
        self.packed = packed
        self.words = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.positions, size.hidden)
        self.types = nn.Embedding(2, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(Layer(size.hidden, size.heads) for _ in range(sum(size.layers)))

    def forward(self, tokens: Tensor, positions: Tensor, types: Tensor, sequences: Tensor) -> Tensor:
        embedded = self.words(tokens) + self.types(types) + self.positions(positions)
        hidden: Tensor = self.dropout(self.norm(embedded))
        hidden_from = sequences[:, None, None, :] == 0
        if self.packed:
            hidden_from = hidden_from | (sequences[:, None, :, None] != sequences[:, None, None, :])
        mask = hidden_from.to(hidden.dtype) * -10000.0
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden


class Heads(nn.Module):
    """The pooler with its next-sentence classifier, and the prediction of masked tokens by the tied decoder.

    Returns scores of masked tokens [N x masked, vocabulary] and of the next sentence [N, 2].
    """

    def __init__(self, size: BertSize, words: nn.Embedding, slices: int) -> None:
        super().__init__()
        self.slices = slices
        self.pooler, self.follows = nn.Linear(size.hidden, size.hidden), nn.Linear(size.hidden, 2)
        self.transform = nn.Linear(size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.words = words
        self.bias = nn.Parameter(torch.zeros(size.vocabulary))

    def forward(self, hidden: Tensor, masked_positions: Tensor) -> tuple[Tensor, Tensor]:
        chosen = F.one_hot(masked_positions.long(), hidden.shape[1]).to(hidden.dtype)
        masked = torch.matmul(chosen, hidden).flatten(0, 1)
        transformed = self.norm(F.gelu(self.transform(masked)))
        scores = torch.matmul(transformed, self.words.weight.t())
        if self.slices > 1:
            building.hint(scores, serialisation=Serialisation("OutputChannels", self.slices))
        follows = self.follows(torch.tanh(self.pooler(hidden[:, 0])))
        return scores + self.bias, follows


class Pretraining(nn.Module):
    """BERT with both losses of its pretraining: returns their sum and the two, all [].

    Inputs are the encoder's, the places and labels of masked tokens [N, masked], and which sentences follow [N].
    """

    def __init__(self, size: BertSize, slices: int, *, packed: bool) -> None:
        super().__init__()
        self.encoder = Encoder(size, packed=packed)
        self.heads = Heads(size, self.encoder.words, slices)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        *tokens, masked_positions, masked_labels, follows = inputs
        scores, next_scores = self.heads(self.encoder(*tokens), masked_positions)
        words = F.cross_entropy(scores, masked_labels.flatten().long(), ignore_index=0).float()
        sentences = F.cross_entropy(next_scores, follows.long()).float()
        return building.marked_loss(words + sentences), words, sentences


@lru_cache(maxsize=2)
def bert_pretraining(size: BertSize, batch: int, length: int = 128, *, slices: int = 1, packed: bool = False) -> Graph:
    """Return pretraining in fp16 over four IPUs; embeddings and heads are on IPU 0, each layer's output is kept.

    `slices` is the factor by which the decoder's product is serialised.
    """
    module = Pretraining(size, slices, packed=packed).half()
    ipus = [ipu for ipu, count in enumerate(size.layers) for _ in range(count)]
    for layer, ipu in zip(module.encoder.layers, ipus, strict=True):
        begin_block(layer, ipu)
        checkpoint(layer)
    begin_block(module.heads, 0)
    tokens, masked = integers(batch, length), integers(batch, MASKED_TOKENS)
    return captured(module, tokens, tokens, tokens, tokens, masked, masked, integers(batch))


def bert_base_program() -> Program:
    """Return BERT-Base's pretraining on a Bow Pod16 (B11): four replicas of four IPUs."""
    return _pretraining(bert_pretraining(BASE, 32), Batching(1, 512, 4), dict.fromkeys(range(4), 0.25), "bert-base")


def bert_large_program(*, replicas: int = 4) -> Program:
    """Return BERT-Large's pretraining with packed sequences on a Bow Pod16 (B12)."""
    graph = bert_pretraining(LARGE, 8, slices=2, packed=True)
    proportions = {0: 0.15, 1: 0.25, 2: 0.25, 3: 0.25}
    return _pretraining(graph, Batching(1, 1752, replicas), proportions, "bert-large")


def _pretraining(graph: Graph, batching: Batching, proportions: dict[int, float], name: str) -> Program:
    return program_of(
        graph,
        batching,
        "Bow-POD16",
        optimiser=LAMB,
        proportions=proportions,
        recomputation=Recomputation.PIPELINE,
        locations=Locations(optimiser=Location(on_chip=False, sharded=True)),
        name=name,
    )


@lru_cache(maxsize=2)
def bert_inference_program(batch: int) -> Program:
    """Return BERT-Base's encoder in fp32 on one C600 card (F4), sequence length 256."""
    tokens = integers(batch, 256)
    graph = captured(Encoder(BASE).eval(), tokens, tokens, tokens, tokens, training=False)
    return program_of(graph, Batching(), "C600-server", half_partials=False, name="bert-base-inference")


# --- ViT


class VisionTransformer(nn.Module):
    """ViT-B/16: images [N, 3, 224, 224] to logits [N, 1000]."""

    def __init__(self, hidden: int = 768) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.zeros(1, 14 * 14 + 1, hidden))
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(Layer(hidden, 12, norms_first=True) for _ in range(12))
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.classifier = nn.Linear(hidden, 1000)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.first.expand(len(images), -1, -1), patches), dim=1)
        hidden: Tensor = self.dropout(tokens + self.positions)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.classifier(self.norm(hidden)[:, 0])
        return logits


@lru_cache(maxsize=2)
def vit_program(layers: tuple[int, ...] = (3, 3, 3, 3)) -> Program:
    """Return ViT-B/16's pretraining on a Bow Pod16 (B13): four replicas of four IPUs, with so many layers on each.

    How the published program distributes its layers is not known. Each layer's output is a checkpoint.
    """
    network = VisionTransformer()
    for layer in network.layers:
        checkpoint(layer)
    for ipu, first in enumerate(accumulate(layers[:-1]), start=1):
        begin_block(network.layers[first], ipu)
    return program_of(
        captured(Classifier(network, normalises=True).half(), *images(8, 3, 224, torch.uint8)),
        Batching(1, 2048, 4),
        "Bow-POD16",
        optimiser=LAMB,
        proportions=dict.fromkeys(range(4), 0.3),
        recomputation=Recomputation.PIPELINE,
        locations=Locations(optimiser=Location(sharded=True)),
        name="vit-b-16",
    )


@lru_cache(maxsize=2)
def vit_inference_program(batch: int) -> Program:
    """Return torchvision's ViT-B/16 in fp16 on one C600 card (B8, B9), to logits.

    Many clients' requests wait for it, so that its streams are hidden.
    """
    network = building.networks().get_model("vit_b_16").eval().half()
    graph = captured(network, images(batch, 3, 224, HALF)[0], training=False)
    return program_of(graph, Batching(100), "C600-server", synthetic_data=True, name="vit-b-16-inference")


# --- Swin


@lru_cache(maxsize=1)
def swin_program() -> Program:
    """Return Swin-T's training in fp32 on a Bow Pod16 (B14): four replicas of four IPUs, AdamW with clipped gradients.

    The IPUs have 2, 3, 5 and 2 blocks; each further one begins at a group and block of torchvision's network.
    """
    network = building.networks().get_model("swin_t")
    for ipu, (group, block) in enumerate(((3, 0), (5, 1), (7, 0)), start=1):
        begin_block(network.features[group][block], ipu)
    return program_of(
        captured(Classifier(network, dtype=FLOAT), *images(4, 3, 224, FLOAT)),
        Batching(1, 64, 4),
        "Bow-POD16",
        optimiser=OptimiserSpec("ADAMW", Hyper(lr=1e-3, weight_decay=0.05), max_grad_norm=5.0),
        half_partials=False,
        proportions=dict.fromkeys(range(4), 0.12),
        recomputation=Recomputation.PIPELINE,
        name="swin-t",
    )
