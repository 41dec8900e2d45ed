"""Vision transformers and EfficientNet: torchvision's networks, as the vendor's applications run them."""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ipu_model.batching import Batching
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict.hardware import system_named
from ipu_model.predict.program import Location, Locations, Program, Recomputation
from ipu_model.step import FLOAT32
from ipu_model.validate.programs.attention import SelfAttention
from ipu_model.validate.programs.building import (
    FLOAT,
    HALF,
    Classifier,
    begin_block,
    captured,
    checkpoint,
    images,
    lamb,
    momentum_sgd,
    networks,
    settings_on,
    torchvision_model,
)

GROUP_DIMENSION = 16
NORM_GROUPS = 4
VIT_LAYERS = (3, 3, 3, 3)
EFFICIENTNET_CUT = 4
_SWIN_CUTS = ((3, 0), (5, 1), (7, 0))
"""The first block of each further IPU for 2, 3, 5 and 2 blocks, by `features` and block of torchvision's network."""


class VisionLayer(nn.Module):
    """One layer of Hugging Face's ViT: attention and feed-forward network, each after a layer norm."""

    def __init__(self, hidden: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.norm_before = nn.LayerNorm(hidden, eps=1e-12)
        self.attention = SelfAttention(hidden, heads)
        self.norm_after = nn.LayerNorm(hidden, eps=1e-12)
        self.wide = nn.Linear(hidden, 4 * hidden)
        self.narrow = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [N, tokens, hidden]."""
        attended = self.attention(self.norm_before(hidden)) + hidden
        found: Tensor = self.dropout(self.narrow(F.gelu(self.wide(self.norm_after(attended))))) + attended
        return found


class VisionTransformer(nn.Module):
    """Hugging Face's ViT-B/16: images [N, 3, 224, 224] to logits [N, 1000]."""

    def __init__(self, hidden: int = 768) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.zeros(1, 14 * 14 + 1, hidden))
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(VisionLayer(hidden) for _ in range(12))
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.classifier = nn.Linear(hidden, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the first token."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.first.expand(len(images), -1, -1), patches), dim=1)
        hidden: Tensor = self.dropout(tokens + self.positions)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.classifier(self.norm(hidden)[:, 0])
        return logits


@lru_cache(maxsize=2)
def vit_training(layers: tuple[int, ...]) -> Graph:
    """Return ViT-B/16 on eight 224 x 224 byte images in fp16, with so many of its layers on each IPU as checkpoints."""
    network = VisionTransformer()
    for layer in network.layers:
        checkpoint(layer)
    for ipu, first in enumerate(accumulate(layers[:-1]), start=1):
        begin_block(network.layers[first], ipu)
    return captured(Classifier(network, normalises=True).half(), *images(8, 3, 224, torch.uint8))


def vit_program(layers: tuple[int, ...] = VIT_LAYERS) -> Program:
    """Return ViT-B/16's pretraining on a Bow Pod16: four replicas of four IPUs, with so many layers on each.

    How the published program distributes its layers is not known.
    """
    machine = system_named("Bow-POD16")
    return Program(
        step=step_of(vit_training(layers)), training=True, batching=Batching(1, 2048, 4), optimiser=lamb(),
        system=machine, recomputation=Recomputation.PIPELINE, locations=Locations(optimiser=Location(sharded=True)),
        name="vit-b-16",
        settings=settings_on(machine, proportions=dict.fromkeys(range(4), 0.3)),
    )  # fmt: skip


@lru_cache(maxsize=2)
def vit_inference(batch: int) -> Graph:
    """Return ViT-B/16 on 224 x 224 images in fp16, to logits."""
    return captured(torchvision_model("vit_b_16").eval().half(), images(batch, 3, 224, HALF)[0], training=False)


def vit_inference_program(batch: int) -> Program:
    """Return ViT-B/16 on one C600 card; requests of many clients wait for it, so that its streams are hidden."""
    card = system_named("C600-server")
    return Program(
        step=step_of(vit_inference(batch)), training=False, batching=Batching(100), system=card,
        synthetic_data=True, settings=settings_on(card), name="vit-b-16-inference",
    )  # fmt: skip


@lru_cache(maxsize=1)
def swin_training() -> Graph:
    """Return Swin-T on four 224 x 224 images in fp32: 2, 3, 5 and 2 blocks on four IPUs."""
    network = torchvision_model("swin_t")
    for ipu, (group, block) in enumerate(_SWIN_CUTS, start=1):
        begin_block(network.features[group][block], ipu)
    return captured(Classifier(network, dtype=FLOAT), *images(4, 3, 224, FLOAT))


def swin_program() -> Program:
    """Return Swin-T's training on a Bow Pod16: four replicas of four IPUs, AdamW with clipped gradients."""
    machine = system_named("Bow-POD16")
    adamw = OptimiserSpec("ADAMW", Hyper(lr=1e-3, weight_decay=0.05), max_grad_norm=5.0)
    return Program(
        step=step_of(swin_training()), training=True, batching=Batching(1, 64, 4), optimiser=adamw, system=machine,
        recomputation=Recomputation.PIPELINE, name="swin-t",
        settings=settings_on(machine, half_partials=False, proportions=dict.fromkeys(range(4), 0.12)),
    )  # fmt: skip


@lru_cache(maxsize=2)
def efficientnet_training(cut: int) -> Graph:
    """Return EfficientNet-B4 with groups of 16 channels, on four 380 x 380 byte images, over two IPUs.

    Blocks with groups of 16 widen their input four times instead of six ("Making EfficientNet More Efficient", Masters
    et al. 2021). Norms have four groups, as in the public command that trains this network (`--groups=4` and no
    `--batch-norm`: docs/benchmarks.md). The second IPU begins at stage `cut` of the network.
    """
    norm = partial(nn.GroupNorm, NORM_GROUPS)
    network = networks().EfficientNet(_blocks_of_b4(), dropout=0.4, last_channel=1792, norm_layer=norm)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and layer.groups > 1:
            _regroup(layer)
    begin_block(network.features[cut], 1)
    return captured(Classifier(network, normalises=True).half(), *images(4, 3, 380, torch.uint8))


def _blocks_of_b4() -> list[object]:
    """Return torchvision's blocks of EfficientNet-B4, with a ratio of 4 where it has 6."""
    blocks = ((1, 3, 1, 32, 16, 1), (4, 3, 2, 16, 24, 2), (4, 5, 2, 24, 40, 2), (4, 3, 2, 40, 80, 3),
              (4, 5, 1, 80, 112, 3), (4, 5, 2, 112, 192, 4), (4, 3, 1, 192, 320, 1))  # fmt: skip
    return [networks().efficientnet.MBConvConfig(*block, width_mult=1.4, depth_mult=1.8) for block in blocks]


def _regroup(layer: nn.Conv2d) -> None:
    """Let a depthwise convolution work on groups of 16 channels, or on fewer groups where 16 do not divide them."""
    layer.groups = max(1, layer.in_channels // GROUP_DIMENSION)
    while layer.in_channels % layer.groups:
        layer.groups -= 1
    layer.weight = nn.Parameter(torch.empty(layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size))


def efficientnet_program(cut: int = EFFICIENTNET_CUT) -> Program:
    """Return EfficientNet-B4's training on a Bow Pod16: eight replicas of two IPUs, in 16.32.

    Where the published program cuts the network is not known; stage 4 is the middle of its modelled time.
    """
    machine = system_named("Bow-POD16")
    return Program(
        step=step_of(efficientnet_training(cut)), training=True, batching=Batching(4, 32, 8),
        optimiser=momentum_sgd(FLOAT32), system=machine, recomputation=Recomputation.PIPELINE, name="efficientnet-b4",
        settings=settings_on(machine, proportions={0: 0.1, 1: 0.1}),
    )  # fmt: skip
