"""A GPT of 24 layers x 1,024 over two IPUs in half precision, with AdamW: about four times too large."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch

LAYERS, WIDTH, HEADS, WORDS, LENGTH = 24, 1024, 16, 50_257, 256


class Block(nn.Module):
    """Attention to earlier words and two linear layers, each normalised first: [N, L, width] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.grow, self.shrink = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.qkv(self.norm_attention(x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        earlier = torch.ones(length, length, dtype=torch.bool).triu(1).logical_not()  # PopTorch has no tril
        mixed = F.scaled_dot_product_attention(query, key, value, earlier)
        x = x + self.mix(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.shrink(F.gelu(self.grow(self.norm(x))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Words [N, L] and the words that follow them [N, L] to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        poptorch.BeginBlock(self.blocks[LAYERS // 2], "second half", ipu_id=1)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        x = self.words(words) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def training() -> dict[str, Any]:
    """A sequence in each micro-batch, 64 in a batch."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(64)
    with torch.device("meta"):  # the sizes are enough
        model, words = GPT().half(), torch.zeros(1, LENGTH, dtype=torch.long)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    return {
        "model": model, "inputs": (words, words), "options": options, "optimizer": optimizer, "micro_batch": True,
    }  # fmt: skip
