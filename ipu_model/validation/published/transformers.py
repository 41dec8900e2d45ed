"""Published programs of transformers: BERT, GPT-2, ViT and Swin, as the vendor's applications run them.

B8 to B28 and F4 are the programs' numbers in the ids of `published.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch
from ipu_model.batching import Batching
from ipu_model.capture.graph import Graph
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.program import Location, Locations, Program
from ipu_model.step import FLOAT16
from published import building
from published.building import FLOAT, HALF, Classifier, begin_block, captured, checkpoint, images, integers, on_pod16
from published.convolutional import momentum_sgd

_MASKED_TOKENS = {128: 20, 384: 56, 512: 76}  # of a row, by its length
# Half accumulators and moments in single precision; or half accumulators and first moments.
LAMB = OptimiserSpec("LAMB", Hyper(lr=1e-3, weight_decay=0.01), loss_scaling=1000.0, accum_dtype=FLOAT16)
ADAMW = OptimiserSpec("ADAMW", Hyper(lr=1e-3, weight_decay=0.01), accum_dtype=FLOAT16, first_dtype=FLOAT16)
SHARDED = Locations(optimiser=Location(sharded=True))
OFF_CHIP = Locations(optimiser=Location(on_chip=False, sharded=True))


@dataclass(frozen=True)
class Style:
    """What layers of transformers differ in.

    `attention`, `wide` and `path` are rates of dropout besides the usual tenth: on the weights of the attention, on the
    wide activations, and on a whole half of the layer for each sample. `fused`: one product makes all its inputs.
    """

    hidden: int
    heads: int
    norms_first: bool = False
    fused: bool = True
    attention: float = 0.0
    wide: float = 0.0
    path: float = 0.0
    gelu: str = "none"


def _dropout(rate: float) -> nn.Module:
    return nn.Dropout(rate) if rate else nn.Identity()


class Layer(nn.Module):
    """Self-attention and a feed-forward network, with a norm before or after each: [N, S, hidden].

    `mask` is added to the scores [N, heads, S, S].
    """

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style, hidden = style, style.hidden
        self.inputs = nn.ModuleList(nn.Linear(hidden, size) for size in ([3 * hidden] if style.fused else [hidden] * 3))
        self.output = nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden, eps=1e-12) for _ in range(2))
        self.dropout, self.weights_dropout, self.wide_dropout = map(_dropout, (0.1, style.attention, style.wide))

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        first, second = self.norms
        if self.style.norms_first:
            attended = hidden + self._dropped(self._attended(first(hidden), mask))
            return attended + self._dropped(self._fed_forward(second(attended)))
        attended = first(hidden + self._dropped(self._attended(hidden, mask)))
        output: Tensor = second(attended + self._dropped(self._fed_forward(attended)))
        return output

    def _attended(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        made = [part for layer in self.inputs for part in layer(hidden).split(hidden.shape[-1], -1)]
        by_head = (*hidden.shape[:2], self.style.heads, hidden.shape[2] // self.style.heads)
        query, key, value = (part.view(by_head).permute(0, 2, 1, 3) for part in made)
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores + mask
        weights = self.weights_dropout(scores.softmax(dim=-1))
        output: Tensor = self.output(torch.matmul(weights, value).permute(0, 2, 1, 3).reshape(hidden.shape))
        return output

    def _fed_forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.narrow(self.wide_dropout(F.gelu(self.wide(hidden), approximate=self.style.gelu)))
        return output

    def _dropped(self, added: Tensor) -> Tensor:
        kept: Tensor = self.dropout(added)
        if self.style.path:
            kept = kept * F.dropout(added.new_ones(len(added), 1, 1), self.style.path, self.training)
        return kept


def _place(modules: Iterable[nn.Module], counts: Iterable[tuple[int, int]]) -> None:
    """Start a block for each module; `counts` has IPUs and how many modules each of them gets."""
    ipus = [ipu for ipu, count in counts for _ in range(count)]
    for module, ipu in zip(modules, ipus, strict=True):
        begin_block(module, ipu)


# --- BERT


@dataclass(frozen=True)
class BertSize:
    """The dimensions of one BERT; `layers` counts those of each IPU."""

    style: Style
    layers: tuple[int, ...]
    vocabulary: int = 30522


BASE = BertSize(Style(768, 12), (0, 4, 4, 4))
LARGE = BertSize(Style(1024, 16), (3, 7, 7, 7))


class Encoder(nn.Module):
    """Embeddings of words, positions and token types, then layers: tokens [N, S] to [N, S, hidden].

    `sequences` numbers the sequence that each token belongs to, 0 for padding. With `packed`, a row holds several
    sequences that do not see each other.
    """

    def __init__(self, size: BertSize, *, packed: bool = False) -> None:
        super().__init__()
        self.packed, hidden = packed, size.style.hidden
        self.words = nn.Embedding(size.vocabulary, hidden)
        self.positions, self.types = nn.Embedding(512, hidden), nn.Embedding(2, hidden)
        self.norm, self.dropout = nn.LayerNorm(hidden, eps=1e-12), nn.Dropout(0.1)
        self.layers = nn.ModuleList(Layer(size.style) for _ in range(sum(size.layers)))

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
    """Score masked tokens by the tied decoder [N x masked, vocabulary], and after a pooler the next sentence [N, 2]."""

    def __init__(self, size: BertSize, words: nn.Embedding, slices: int) -> None:
        super().__init__()
        hidden, self.slices, self.words = size.style.hidden, slices, words
        self.pooler, self.follows = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)
        self.transform, self.norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(size.vocabulary))

    def forward(self, hidden: Tensor, masked_positions: Tensor) -> tuple[Tensor, Tensor]:
        chosen = F.one_hot(masked_positions.long(), hidden.shape[1]).to(hidden.dtype)
        masked = torch.matmul(chosen, hidden).flatten(0, 1)
        scores = _decoded(self.norm(F.gelu(self.transform(masked))), self.words, self.slices)
        follows = self.follows(torch.tanh(self.pooler(hidden[:, 0])))
        return scores + self.bias, follows


def _decoded(hidden: Tensor, words: nn.Embedding, slices: int) -> Tensor:
    """Return scores of all words by the tied embedding, a product that is serialised by the factor `slices`."""
    mode = poptorch.MatMulSerializationMode.OutputChannels if slices > 1 else poptorch.MatMulSerializationMode.Disabled
    return poptorch.serializedMatMul(hidden, words.weight.t(), mode, slices)


class Pretraining(nn.Module):
    """From tokens, places and labels of masked ones [N, masked] and following sentences [N] to both losses' sum []."""

    def __init__(self, size: BertSize, slices: int, *, packed: bool) -> None:
        super().__init__()
        self.encoder = Encoder(size, packed=packed)
        self.heads = Heads(size, self.encoder.words, slices)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        *tokens, masked_positions, masked_labels, follows = inputs
        scores, next_scores = self.heads(self.encoder(*tokens), masked_positions)
        words = F.cross_entropy(scores, masked_labels.flatten().long(), ignore_index=0).float()
        sentences = F.cross_entropy(next_scores, follows.long()).float()
        return poptorch.identity_loss(words + sentences, "none"), words, sentences


class Answers(nn.Module):
    """BERT that finds answers in a text: scores of their starts and ends [N, S], after the loss if it gets labels."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.encoder, self.scores = Encoder(size), nn.Linear(size.style.hidden, 2)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        tokens, labels = inputs[:4], inputs[4:]
        scores = self.scores(self.encoder(*tokens)).unbind(-1)
        if not labels:
            return tuple(scores)
        losses = [F.cross_entropy(each, label.long()) for each, label in zip(scores, labels)]
        return poptorch.identity_loss((losses[0] + losses[1]) / 2, "none"), *scores


@lru_cache(maxsize=8)
def _pretraining(
    size: BertSize,
    rows: tuple[int, int],
    accumulation: int,
    proportions: tuple[float, float],
    *,
    replicas: int = 4,
    slices: int = 1,
    packed: bool = False,
    halves: tuple[tuple[int, int, int], ...] = (),
    locations: Locations = OFF_CHIP,
) -> Program:
    """Return pretraining in fp16 with so many `rows` of such a length in a micro-batch.

    Embeddings and heads are on IPU 0; `proportions` are its own and that of all others. `halves` places halves of
    layers instead of whole ones: an IPU and its number of attentions and of feed-forward networks, by stages.
    """
    module = Pretraining(size, slices, packed=packed).half()
    layers = module.encoder.layers
    for layer in layers:
        checkpoint(layer)
    if halves:
        _place(layers, ((ipu, attentions) for ipu, attentions, _ in halves))
        _place((layer.get_submodule("wide") for layer in layers), ((ipu, networks) for ipu, _, networks in halves))
    else:
        _place(layers, enumerate(size.layers))
    begin_block(module.heads, 0)
    tokens, masked = integers(*rows), integers(rows[0], _MASKED_TOKENS[rows[1]])
    graph = captured(module, tokens, tokens, tokens, tokens, masked, masked, integers(rows[0]))
    name = "bert-base" if size.style.hidden == BASE.style.hidden else "bert-large"
    every = proportions[:1] + proportions[1:] * (len(size.layers) - 1)
    return on_pod16(graph, Batching(1, accumulation, replicas), LAMB, every, name, locations=locations)


# B11 and B12: the vendor's applications for PyTorch; B18: the latter at length 512.
bert_base_program = partial(_pretraining, BASE, (32, 128), 512, (0.25, 0.25))
bert_large_program = partial(_pretraining, LARGE, (8, 128), 1752, (0.15, 0.25), slices=2, packed=True)
bert_large_512_program = partial(_pretraining, LARGE, (2, 512), 1024, (0.10, 0.15), slices=2, packed=True)
# B16 and B17: those for PopART.
bert_base_512_program = partial(_pretraining, replace(BASE, vocabulary=30400), (8, 512), 512, (0.28, 0.28), slices=5)
bert_large_384_program = partial(_pretraining, replace(LARGE, vocabulary=30400), (2, 384), 2048, (0.15, 0.40), slices=5)
# B19: MLPerf v2.0, PopART. Its own ops for packed attention, and the clipping of gradients, are left out.
mlperf_bert_program = partial(
    _pretraining,
    BertSize(replace(LARGE.style, attention=0.1), (3,) * 8, vocabulary=30912),
    (3, 512),
    256,
    (1.0, 1.0),
    replicas=2,
    slices=4,
    packed=True,
    halves=((1, 3, 3), (2, 3, 3), (3, 3, 3), (4, 4, 3), (5, 3, 4), (6, 4, 3), (7, 3, 4), (0, 1, 1)),
    locations=SHARDED,
)


@lru_cache(maxsize=1)
def squad_program() -> Program:
    """Return the fine-tuning of BERT-Large on SQuAD at length 384 (B20): two replicas of eight IPUs."""
    size = BertSize(replace(LARGE.style, attention=0.15), (2, 3, 3, 3, 3, 3, 3, 4))
    module = Answers(size).half()
    for layer in module.encoder.layers[:-1]:
        checkpoint(layer)
    _place(module.encoder.layers, enumerate(size.layers))
    tokens, labels = integers(4, 384), integers(4)
    graph = captured(module, tokens, tokens, tokens, tokens, labels, labels)
    proportions = (0.08, 0.25, 0.32, 0.32, 0.36, 0.38, 0.4, 0.32)
    return on_pod16(graph, Batching(2, 32, 2), ADAMW, proportions, "bert-large-squad", locations=SHARDED)


@lru_cache(maxsize=8)
def bert_inference(batch: int, dtype: torch.dtype) -> Graph:
    tokens = integers(batch, 256)
    return captured(Answers(BASE).eval().to(dtype), tokens, tokens, tokens, tokens, training=False)


def bert_inference_program(batch: int, dtype: torch.dtype = FLOAT, *, half_partials: bool = True) -> Program:
    """Return BERT-Base in inference on one C600 card at length 256 (F4, B25 to B28): one micro-batch a call."""
    half = half_partials and dtype == HALF
    graph = bert_inference(batch, dtype)
    return building.program_of(graph, Batching(), "C600-server", half_partials=half, name="bert-base-inference")


# --- GPT-2


class Gpt(nn.Module):
    """GPT-2: tokens and labels [N, 1024] to the loss and the share of right words, both []."""

    def __init__(self, style: Style, layers: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50272, style.hidden), nn.Embedding(1024, style.hidden)
        self.layers = nn.ModuleList(Layer(style) for _ in range(layers))
        self.dropout, self.norm = nn.Dropout(0.1), nn.LayerNorm(style.hidden)
        self.register_buffer("hidden_from", torch.triu(torch.full((1, 1, 1024, 1024), -1e4), 1))

    def forward(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        words = self.words(tokens)
        hidden = self.dropout(words + self.positions(torch.arange(tokens.shape[1], device=tokens.device)))
        for layer in self.layers:
            hidden = layer(hidden, self.hidden_from)
        with poptorch.Block(ipu_id=0):
            scores, targets = _decoded(self.norm(hidden), self.words, 4).flatten(0, 1), labels.flatten().long()
            loss = right = torch.zeros((), device=tokens.device)
            for some, wanted in zip(scores.split(128), targets.split(128)):  # as published
                loss = loss + F.cross_entropy(some, wanted, reduction="sum").float()
                right = right + (some.argmax(-1) == wanted).float().sum()
            return poptorch.identity_loss(loss / len(targets), "none"), right / len(targets)


@lru_cache(maxsize=1)
def gpt2_program() -> Program:
    """Return the training of GPT-2's smallest size (B22): four replicas of four IPUs."""
    module = Gpt(Style(768, 12, norms_first=True, attention=0.1, gelu="tanh"), 12).half()
    for layer in module.layers:
        checkpoint(layer)
    _place(module.layers, enumerate((0, 4, 4, 4)))
    begin_block(module.words, 0)
    begin_block(module.positions, 1)
    graph = captured(module, integers(1, 1024), integers(1, 1024))
    return on_pod16(graph, Batching(8, 2048, 4), ADAMW, (0.15,) * 4, "gpt2", locations=OFF_CHIP)


# --- ViT


class VisionTransformer(nn.Module):
    """ViT-B/16: images [N, 3, 224, 224] to logits [N, 1000]; its pretraining drops out more and has a layer more."""

    def __init__(self, *, pretraining: bool) -> None:
        super().__init__()
        style = Style(768, 12, norms_first=True, fused=False, attention=0.1 * pretraining, wide=0.1)
        paths = (0.1 * pretraining * layer / 11 for layer in range(12))
        self.patches = nn.Conv2d(3, style.hidden, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, style.hidden))
        self.positions = nn.Parameter(torch.zeros(1, 14 * 14 + 1, style.hidden))
        self.dropout, self.norm = nn.Dropout(0.1), nn.LayerNorm(style.hidden, eps=1e-12)
        self.layers = nn.ModuleList(Layer(replace(style, path=path)) for path in paths)
        self.represented = nn.Sequential(nn.Linear(768, 768), nn.Tanh()) if pretraining else nn.Identity()
        self.classifier = nn.Linear(style.hidden, 1000)

    def forward(self, patches: Tensor) -> Tensor:
        tokens = self.patches(patches).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.first.expand(len(tokens), -1, -1), tokens), dim=1)
        hidden: Tensor = self.dropout(tokens + self.positions)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.classifier(self.represented(self.norm(hidden)[:, 0]))
        return logits


@lru_cache(maxsize=2)
def vit_program(layers: tuple[int, ...] = (3, 3, 3, 3), *, pretraining: bool = True) -> Program:
    """Return ViT-B/16 on a Bow Pod16: its pretraining (B13) or fine-tuning (B21), with so many layers on each IPU.

    How the published program distributes its layers is not known. Each layer's output is a checkpoint.
    """
    network = VisionTransformer(pretraining=pretraining)
    for layer in network.layers:
        checkpoint(layer)
    for ipu, first in enumerate(accumulate(layers[:-1]), start=1):
        begin_block(network.layers[first], ipu)
    batch, dtype = (8, torch.uint8) if pretraining else (17, HALF)
    graph = captured(Classifier(network, normalises=pretraining).half(), *images(batch, 3, 224, dtype))
    batching = Batching(1, 2048, 4) if pretraining else Batching(8, 30, 4)
    optimiser = LAMB if pretraining else momentum_sgd()
    return on_pod16(graph, batching, optimiser, (0.3,) * 4, "vit-b-16", locations=SHARDED)


@lru_cache(maxsize=2)
def vit_inference_program(batch: int) -> Program:
    """Return torchvision's ViT-B/16 in fp16 on one C600 card (B8, B9), to logits.

    Many clients' requests wait for it, so that its streams are hidden.
    """
    network = building.networks().get_model("vit_b_16").eval().half()
    graph = captured(network, images(batch, 3, 224, HALF)[0], training=False)
    return building.program_of(graph, Batching(100), "C600-server", synthetic_data=True, name="vit-b-16-inference")


# --- Swin


@lru_cache(maxsize=2)
def swin_program(network: str = "swin_t", counts: tuple[int, ...] = (2, 3, 5, 2)) -> Program:
    """Return a Swin's training in fp32 on a Bow Pod16, AdamW with clipped gradients: Swin-T (B14) or Swin-B (B23).

    IPU i has `counts[i]` blocks of torchvision's network, which pads no windows to 56 tokens as the application does.
    """
    module = building.networks().get_model(network)
    blocks = [block for group in (1, 3, 5, 7) for block in module.features[group]]
    for ipu, first in enumerate(accumulate(counts[:-1]), start=1):
        begin_block(blocks[first], ipu)
    graph = captured(Classifier(module, dtype=FLOAT), *images(4, 3, 224, FLOAT))
    optimiser = OptimiserSpec("ADAMW", Hyper(lr=1e-3, weight_decay=0.05), max_grad_norm=5.0)
    ipus = len(counts)
    return on_pod16(graph, Batching(1, 64, 16 // ipus), optimiser, (0.12,) * ipus, network, half_partials=False)
