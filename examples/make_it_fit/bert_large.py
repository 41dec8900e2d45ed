"""BERT-Large with its masked words, in float32 on one IPU, with AdamW: what a program looks like before any IPU's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch

LAYERS, WIDTH, HEADS, WORDS, LENGTH, MASKED = 24, 1024, 16, 30_522, 128, 20


class Bert(nn.Module):
    """Words [N, L], places of the masked ones [N, M] and what they were [N, M] to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, activation="gelu", batch_first=True)
            for _ in range(LAYERS)
        )
        self.transform, self.norm_words = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, masked: Tensor, were: Tensor) -> Tensor:
        x = self.norm(self.words(words) + self.places.weight)
        for layer in self.layers:
            x = layer(x)
        chosen = F.one_hot(masked, LENGTH).to(x.dtype) @ x  # a gather as a matrix product
        logits = self.head(self.norm_words(F.gelu(self.transform(chosen))))
        return F.cross_entropy(logits.flatten(0, 1).float(), were.flatten())


def training() -> dict[str, Any]:
    """Two sequences in each micro-batch, 512 in a batch."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(256)
    with torch.device("meta"):  # the sizes are enough
        model, words, masked = Bert(), torch.zeros(2, LENGTH).long(), torch.zeros(2, MASKED).long()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    return {
        "model": model, "inputs": (words, masked, masked), "options": options, "optimizer": optimizer,
        "micro_batch": True,
    }  # fmt: skip
