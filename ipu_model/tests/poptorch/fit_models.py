"""A decoder and a U-Net of any size, for the tests of `make_it_fit`; their weights have no data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from modelling_support import trainable
from torch import Tensor, nn

import poptorch


class DecoderBlock(nn.Module):
    """A layer of a transformer that looks back only, for [N, T, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, time, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(rows, time, width // 64, 64).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A GPT that returns the loss of [N, 256] token ids."""

    def __init__(self, layers: int, width: int, tokens: int = 8192) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(256, width)
        self.register_buffer("numbers", torch.arange(256, device="cpu"))
        self.blocks = nn.ModuleList(DecoderBlock(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(self.numbers)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return poptorch.identity_loss(F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()), "none")


def level(ins: int, outs: int) -> nn.Sequential:
    """Return a level of a U-Net: two convolutions."""
    first, second = nn.Conv2d(ins, outs, 3, padding=1), nn.Conv2d(outs, outs, 3, padding=1)
    return nn.Sequential(first, nn.GroupNorm(8, outs), nn.ReLU(), second, nn.GroupNorm(8, outs), nn.ReLU())


class UNet(nn.Module):
    """Segmentation into two classes; returns the loss of images [N, 3, H, W] with labels [N, H, W]."""

    def __init__(self, width: int, levels: int = 4) -> None:
        super().__init__()
        sizes = [width * 2**depth for depth in range(levels)]
        self.first = level(3, width)
        self.down = nn.ModuleList(level(a, b) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(list(pairwise(sizes))))
        self.joined = nn.ModuleList(level(2 * a, a) for a in reversed(sizes[:-1]))
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        kept = [self.first(x)]
        for down in self.down:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, joined in zip(self.up, self.joined):
            x = joined(torch.cat([up(x), kept.pop()], 1))
        return poptorch.identity_loss(F.cross_entropy(self.last(x), labels), "none")


@dataclass(frozen=True)
class Case:
    """A module with the inputs of one micro-batch, options and an optimiser, as `make_it_fit` takes them."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    options: poptorch.Options
    optimizer: Any

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments after the module."""
        return {"inputs": self.inputs, "options": self.options, "optimizer": self.optimizer, "micro_batch": True}


def decoder(layers: int, width: int, *, half: bool = True, accumulation: int = 64) -> Case:
    """Return the training of a GPT over two IPUs, with micro-batches of one sequence."""
    with torch.device("meta"):
        module = Decoder(layers, width)
    poptorch.BeginBlock(module.blocks[layers // 2], ipu_id=1)
    module, ids = module.half() if half else module, torch.zeros(1, 256, dtype=torch.long)
    optimizer = poptorch.optim.AdamW(module.parameters(), lr=1e-4)
    return Case(module, (ids, ids), trainable(2, accumulation), optimizer)


def unet(pixels: int, width: int, rows: int = 4) -> Case:
    """Return the training of a U-Net in single precision on one IPU."""
    with torch.device("meta"):
        module = UNet(width)
    inputs = torch.zeros(rows, 3, pixels, pixels), torch.zeros(rows, pixels, pixels, dtype=torch.long)
    return Case(module, inputs, trainable(1, 8), poptorch.optim.AdamW(module.parameters(), lr=1e-4))
