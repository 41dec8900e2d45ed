"""Transformers as programs write them for PopTorch: attention, encoders, language models, BERT over four IPUs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from modelling_support import quiet
from torch import Tensor, nn
from zoo_support import agree, check_inference, check_training, names, weights

import ipu_model
import poptorch

VOCABULARY, LENGTH, WIDTH = 40, 5, 16
PADDING = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
IDS = torch.arange(2 * LENGTH).reshape(2, LENGTH) % VOCABULARY


def tokens() -> Tensor:
    """Return two embedded sentences."""
    return torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Multi-head attention by hand."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), heads

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.size()
        split = [t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)]
        scores = split[0] @ split[1].transpose(-1, -2) / (width // self.heads) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        mixed = (scores.softmax(dim=-1) @ split[2]).transpose(1, 2).contiguous()
        return self.out(mixed.view(batch, length, width))


class Called(nn.Module):
    """A module of torch whose last input is the keyword argument `mask`, called with other ones as they are."""

    def __init__(self, module: nn.Module, mask: str = "", **kwargs: Any) -> None:
        super().__init__()
        self.module, self.mask, self.kwargs = module, mask, kwargs

    def forward(self, *args: Any) -> Any:
        if not self.mask:
            return self.module(*args, **self.kwargs)
        return self.module(*args[:-1], **{self.mask: args[-1]}, **self.kwargs)


def layer(**kwargs: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True, **kwargs)


class SelfAttention(nn.MultiheadAttention):
    """Queries, keys and values are the same."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 4, batch_first=True)

    def forward(self, x: Tensor, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().forward(x, x, x, **kwargs)


class Product(nn.Module):
    """Attention of one head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, dim=-1), **kwargs)


class LanguageModel(nn.Module):
    """A decoder whose first and last layer share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(8, WIDTH)
        self.blocks = nn.TransformerEncoder(layer(activation="gelu"), 1)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("seen", torch.ones(8, 8).tril().bool())

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        length = input_ids.size(1)
        x = self.tokens(input_ids) + self.places(torch.arange(length, device=input_ids.device))
        logits = self.head(self.norm(self.blocks(x, mask=~self.seen[:length, :length])))
        if labels is None:
            return {"logits": logits}
        shifted = logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1)
        return {"loss": F.cross_entropy(*shifted, ignore_index=-100), "logits": logits}


LAYERS: dict[str, Any] = {
    "by hand": lambda: (Attention(), tokens()),
    "by hand, masked": lambda: (Attention(), tokens(), PADDING),
    "MultiheadAttention": lambda: (SelfAttention(), tokens()),
    "MultiheadAttention, padding": lambda: (Called(SelfAttention(), "key_padding_mask"), tokens(), PADDING == 0),
    "MultiheadAttention, causal": lambda: (
        Called(SelfAttention(), "attn_mask", need_weights=False), tokens(), CAUSAL),
    "TransformerEncoder": lambda: (nn.TransformerEncoder(layer(), 2), tokens()),
    "TransformerEncoder, padding": lambda: (nn.TransformerEncoder(layer(), 1), tokens(), None, PADDING == 0),
    "TransformerEncoder, causal": lambda: (nn.TransformerEncoder(layer(), 1), tokens(), CAUSAL),
    "TransformerEncoder, says causal": lambda: (
        Called(nn.TransformerEncoder(layer(), 1), "mask", is_causal=True), tokens(), CAUSAL),
    "norm first": lambda: (layer(norm_first=True, activation="gelu"), tokens()),
    "TransformerDecoderLayer": lambda: (
        nn.TransformerDecoderLayer(WIDTH, 4, 32, 0.0, batch_first=True), tokens(), tokens()),
    "Transformer, causal target": lambda: (
        Called(nn.Transformer(WIDTH, 4, 1, 1, 32, 0.0, batch_first=True), "tgt_mask"), tokens(), tokens(), CAUSAL),
    "scaled_dot_product_attention": lambda: (Product(), tokens()),
    "scaled_dot_product_attention, causal": lambda: (Called(Product(), is_causal=True), tokens()),
    "scaled_dot_product_attention, mask": lambda: (Called(Product(), "attn_mask"), tokens(), CAUSAL == 0),
    "language model": lambda: (LanguageModel(), IDS),
    "language model with labels": lambda: (LanguageModel(), IDS, IDS.where(IDS != 7, -100)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_training_agrees_with_pytorch(name: str) -> None:
    check_training(*LAYERS[name]())


@pytest.mark.parametrize("name", ["TransformerEncoder, padding", "TransformerEncoder, causal", "language model"])
def test_inference_agrees_with_pytorch(name: str) -> None:
    check_inference(*LAYERS[name]())


def test_dropout_of_an_encoder_runs_in_training_only() -> None:
    wrapped = poptorch.inferenceModel(nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True), quiet())
    x = tokens()
    training = wrapped(x)
    wrapped.destroy()
    wrapped.eval()
    assert not torch.equal(training, wrapped(x))
    assert torch.equal(wrapped(x), wrapped(x))


class Bert(nn.Module):
    """An encoder whose last layer shares the embedding's weight; a quarter of its layers on each IPU."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places, self.kinds, self.norm = nn.Embedding(length, width), nn.Embedding(2, width), nn.LayerNorm(width)
        encoder = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(encoder) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.tokens.weight
        for number, block in enumerate(self.layers):
            block.register_forward_hook(lambda module, inputs, output: poptorch.recomputationCheckpoint(output))
            self.layers[number] = poptorch.BeginBlock(block, f"Encoder{number}", ipu_id=4 * number // layers)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with poptorch.Block("Embedding", ipu_id=0):
            places = torch.arange(input_ids.size(1), device=input_ids.device)
            x = self.norm(self.tokens(input_ids) + self.places(places) + self.kinds(torch.zeros_like(input_ids)))
            padding = attention_mask == 0
        for block in self.layers:
            x = block(x, src_key_padding_mask=padding)
        with poptorch.Block("Head", ipu_id=0):
            logits = self.head(x)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return logits, loss


def bert_options(accumulation: int) -> poptorch.Options:
    """Return options as public BERT programs set them."""
    options = quiet()
    options.autoRoundNumIPUs(True)
    options.outputMode(poptorch.OutputMode.Final)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.Training.gradientAccumulation(accumulation)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    options.setAvailableMemoryProportion({f"IPU{ipu}": 0.2 for ipu in range(4)})
    options.Precision.setPartialsType(torch.float16)
    options._Popart.set("autoRecomputation", 3)
    return options


def sentences(rows: int, vocabulary: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, vocabulary, (rows, length), generator=generator)
    labels = ids.where(torch.arange(length) % 3 == 1, -100)
    return {"input_ids": ids, "attention_mask": torch.arange(length).expand(rows, -1).lt(length - 1).long(),
            "labels": labels}  # fmt: skip


def test_a_small_bert_pipelined_over_four_ipus_with_recomputation_learns_as_in_pytorch() -> None:
    model, accumulation = Bert(VOCABULARY, WIDTH, 4, 2, 8), 9
    reference = copy.deepcopy(model)
    batch = sentences(2 * accumulation, VOCABULARY, 8)
    options = bert_options(accumulation)
    options.Precision.setPartialsType(torch.float32)
    wrapped = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.05))
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.05)
    for _ in range(2):
        _, loss = wrapped(**batch)
        optimiser.zero_grad()
        for rows in zip(*(tensor.chunk(accumulation) for tensor in batch.values())):
            expected = reference(*rows)[1]
            (expected / accumulation).backward()
        optimiser.step()
        agree(loss, expected)
    wrapped.copyWeightsToHost()
    agree(weights(model), weights(reference))
    assert model.head.weight is model.tokens.weight


def test_a_bert_of_full_size_has_a_profile_and_a_formula_for_every_op() -> None:
    """BERT-base in half precision, 384 tokens, in a pipeline of five stages on four IPUs."""
    with torch.device("meta"):
        model = Bert(30_528, 768, 12, 12, 384).half()
    shapes = {name: tensor.to("meta") for name, tensor in sentences(9, 100, 384).items()}
    profile = ipu_model.profile_module(model, shapes, bert_options(9), training=True)
    assert len(profile.memory) == 4
    assert names(profile) == set()
