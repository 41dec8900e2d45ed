"""Self-attention as Hugging Face's BERT and ViT write it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Attention over the tokens of a sequence, with its output layer: [N, S, hidden] to [N, S, hidden].

    Queries, keys and values have linear layers of their own; two products surround a softmax and dropout.
    """

    def __init__(self, hidden: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.weights_dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, hidden)
        self.output_dropout = nn.Dropout(dropout)

    def _by_head(self, tensor: Tensor) -> Tensor:
        batch, length, hidden = tensor.shape
        return tensor.view(batch, length, self.heads, hidden // self.heads).permute(0, 2, 1, 3)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return what the tokens attend to; `mask` is added to the scores [N, heads, S, S]."""
        query, key, value = (self._by_head(layer(hidden)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores + mask
        weights = self.weights_dropout(scores.softmax(dim=-1))
        context = torch.matmul(weights, value).permute(0, 2, 1, 3).reshape(hidden.shape)
        found: Tensor = self.output_dropout(self.output(context))
        return found
