"""A decoder and a U-Net of any size, for the tests of `make_it_fit`; their weights have no data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch


class DecoderBlock(nn.Module):
    """A layer of a transformer that looks back only."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, width] for [N, T, width]."""
        rows, time, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(rows, time, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(rows, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A GPT that returns its loss."""

    def __init__(self, layers: int = 24, width: int = 1024, time: int = 256, tokens: int = 8192) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(time, width)
        self.register_buffer("numbers", torch.arange(time, device="cpu"))
        self.blocks = nn.ModuleList(DecoderBlock(width, width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of [N, T] token ids."""
        x = self.tokens(ids) + self.places(self.numbers)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss: Tensor = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return poptorch.identity_loss(loss, "none")


class Halves(nn.Module):
    """A level of a U-Net: two convolutions."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(ins, outs, 3, padding=1), nn.Conv2d(outs, outs, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(8, outs), nn.GroupNorm(8, outs)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, outs, H, W]."""
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class UNet(nn.Module):
    """Segmentation into two classes; returns its loss."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(levels)]
        self.first = Halves(3, width)
        self.down = nn.ModuleList(Halves(a, b) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(list(pairwise(sizes))))
        self.joined = nn.ModuleList(Halves(2 * a, a) for a in reversed(sizes[:-1]))
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of images [N, 3, H, W] with labels [N, H, W]."""
        kept = [self.first(x)]
        for level in self.down:
            kept.append(level(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, level in zip(self.up, self.joined):
            x = level(torch.cat([up(x), kept.pop()], 1))
        loss: Tensor = F.cross_entropy(self.last(x), labels)
        return poptorch.identity_loss(loss, "none")


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
        given = {"inputs": self.inputs, "options": self.options, "optimizer": self.optimizer}
        return {**given, "micro_batch": True}


def case(module: nn.Module, *inputs: Tensor, accumulation: int, half: bool = False, ipus: int = 1) -> Case:
    """Return a training program of a module with AdamW."""
    module = module.half() if half else module
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    given = tuple(each.half() if half and each.is_floating_point() else each for each in inputs)
    return Case(module, given, options, poptorch.optim.AdamW(module.parameters(), lr=1e-4))


def decoder(layers: int = 24, width: int = 1024, *, half: bool = True, accumulation: int = 64) -> Case:
    """Return a GPT over two IPUs, with micro-batches of one sequence."""
    with torch.device("meta"):
        module = Decoder(layers, width)
    poptorch.BeginBlock(module.blocks[layers // 2], ipu_id=1)
    ids = torch.zeros(1, 256, dtype=torch.long)
    return case(module, ids, ids, accumulation=accumulation, half=half)


def unet(pixels: int = 128, width: int = 32, rows: int = 4) -> Case:
    """Return a U-Net in single precision on one IPU."""
    with torch.device("meta"):
        module = UNet(width)
    images, labels = torch.zeros(rows, 3, pixels, pixels), torch.zeros(rows, pixels, pixels, dtype=torch.long)
    return case(module, images, labels, accumulation=8)
