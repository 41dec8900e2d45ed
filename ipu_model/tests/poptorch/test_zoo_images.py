"""Networks of images: norms, convolutions of every rank, padding, pooling, interpolation, U-Net, ViT, DenseNet..."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision.models as tv
from modelling_support import quiet
from torch import Tensor, nn
from zoo_support import Function, Squared, check_inference, check_training, names

import ipu_model
import poptorch

P = nn.utils.parametrizations


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


IMAGES, SIGNALS, VOLUMES = numbers(2, 8, 6, 6), numbers(2, 8, 7), numbers(1, 8, 4, 4, 4)

LAYERS: dict[str, Any] = {
    "GroupNorm": lambda: (nn.GroupNorm(2, 8), IMAGES),
    "InstanceNorm": lambda: (nn.InstanceNorm2d(8, affine=True, track_running_stats=True), IMAGES),
    "InstanceNorm of signals": lambda: (nn.InstanceNorm1d(8, affine=True), SIGNALS),
    "BatchNorm of rows": lambda: (nn.BatchNorm1d(7), numbers(4, 7)),
    "BatchNorm of volumes": lambda: (nn.BatchNorm3d(8), VOLUMES),
    "SyncBatchNorm": lambda: (nn.SyncBatchNorm(8), IMAGES),
    "LayerNorm": lambda: (nn.LayerNorm([6, 6]), IMAGES),
    "RMSNorm": lambda: (nn.RMSNorm(6), IMAGES),
    "LocalResponseNorm": lambda: (Function(nn.LocalResponseNorm(3)), IMAGES),
    "depthwise": lambda: (nn.Conv2d(8, 8, 3, groups=8, padding="same"), IMAGES),
    "padding by reflection": lambda: (nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"), IMAGES),
    "dilated signals": lambda: (nn.Conv1d(8, 4, 3, dilation=2), SIGNALS),
    "3-D": lambda: (nn.Conv3d(8, 4, 3, padding=1), VOLUMES),
    "transposed 1-D": lambda: (nn.ConvTranspose1d(8, 4, 4, 2), SIGNALS),
    "transposed 2-D": lambda: (nn.ConvTranspose2d(8, 4, 3, 2, padding=1, output_padding=1, groups=2), IMAGES),
    "transposed 3-D": lambda: (nn.ConvTranspose3d(8, 4, 2, 2), VOLUMES),
    "weight norm": lambda: (P.weight_norm(nn.Conv1d(8, 5, 3)), SIGNALS),
    "spectral norm": lambda: (P.spectral_norm(nn.Conv2d(8, 5, 3)), IMAGES),
    "MaxPool with indices": lambda: (Function(nn.MaxPool2d(2, return_indices=True)), IMAGES),
    "AvgPool": lambda: (Function(nn.AvgPool2d(3, 2, 1, count_include_pad=False)), IMAGES),
    "AdaptiveAvgPool": lambda: (Function(nn.AdaptiveAvgPool2d((2, 3))), IMAGES),
    "AdaptiveMaxPool": lambda: (Function(nn.AdaptiveMaxPool2d(2)), IMAGES),
    "3-D pools": lambda: (Function(nn.Sequential(nn.MaxPool3d(2), nn.AvgPool3d(2))), VOLUMES),
    "MaxUnpool": lambda: (
        Function(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)), IMAGES),
    "paddings": lambda: (Function(nn.Sequential(
        nn.ReflectionPad2d(2), nn.ReplicationPad2d(1), nn.CircularPad2d(1), nn.ConstantPad2d(1, 0.5))), IMAGES),
    "fold of unfold": lambda: (Function(lambda x: F.fold(F.unfold(x, 2, stride=2), (6, 6), 2, stride=2)), IMAGES),
    "pixel shuffles": lambda: (Function(nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(3))), IMAGES),
    "grid_sample": lambda: (
        Function(lambda x, grid: F.grid_sample(x, grid, align_corners=False)), IMAGES, numbers(2, 3, 3, 2).tanh()),
}  # fmt: skip

INTERPOLATIONS: list[tuple[Tensor, dict[str, Any]]] = [
    (IMAGES, {"scale_factor": 2}),
    (IMAGES, {"scale_factor": 2, "mode": "bilinear", "align_corners": True}),
    (IMAGES, {"scale_factor": 0.5, "mode": "bilinear", "antialias": True}),
    (IMAGES, {"size": (9, 7), "mode": "bicubic"}),
    (IMAGES, {"size": (3, 3), "mode": "area"}),
    (IMAGES, {"scale_factor": 1.5, "mode": "nearest-exact"}),
    (SIGNALS, {"scale_factor": 2, "mode": "linear"}),
    (VOLUMES, {"scale_factor": 2, "mode": "trilinear"}),
]


class UNet(nn.Module):
    """Two levels down and up again, with skips: one transposed convolution, one interpolation."""

    def __init__(self, width: int = 4, channels: int = 3) -> None:
        super().__init__()
        self.down, self.middle = self.block(channels, width), self.block(2 * width, 4 * width)
        self.lower = self.block(width, 2 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.left, self.top = self.block(4 * width, 2 * width), self.block(3 * width, width)
        self.upsample, self.out = nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(width, 2, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Sequential:
        convolutions = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)]
        norms = [nn.InstanceNorm2d(outputs, affine=True) for _ in convolutions]
        return nn.Sequential(*(m for pair in zip(convolutions, norms) for m in (*pair, nn.ReLU(inplace=True))))

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        low = self.lower(F.max_pool2d(high, 2))
        low = self.left(torch.cat([self.up(self.middle(F.max_pool2d(low, 2))), low], dim=1))
        return self.out(self.top(torch.cat([self.upsample(low), high], dim=1)))


NETWORKS: dict[str, Any] = {
    "U-Net": lambda: UNet(),
    "ViT": lambda: tv.VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=5),
    "MobileNet": lambda: tv.MobileNetV2(5, 0.25, [[1, 16, 1, 1], [6, 24, 1, 2]], dropout=0.0),
    "DenseNet": lambda: tv.DenseNet(8, (2, 2), 8, num_classes=5),
    "ConvNeXt": lambda: tv.ConvNeXt([tv.convnext.CNBlockConfig(8, None, 2)], num_classes=5),
    "Swin": lambda: tv.SwinTransformer([2, 2], 8, [2], [2], [2, 2], num_classes=5, stochastic_depth_prob=0.0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_train_as_in_pytorch(name: str) -> None:
    check_training(*LAYERS[name]())


@pytest.mark.parametrize(("images", "options"), INTERPOLATIONS, ids=str)
def test_interpolations_train_as_in_pytorch(images: Tensor, options: dict[str, Any]) -> None:
    check_training(Function(lambda x: F.interpolate(x, **options)), images)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_as_in_pytorch(name: str) -> None:
    check_training(NETWORKS[name](), numbers(4, 3, 16, 16), rate=1e-3)


def test_a_network_infers_as_in_pytorch() -> None:
    check_inference(tv.VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=5), numbers(4, 3, 16, 16))


DROPOUTS = [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU]


@pytest.mark.parametrize("kind", DROPOUTS)
def test_dropout_draws_other_numbers_in_every_call_and_none_in_inference(kind: Any) -> None:
    wrapped = poptorch.inferenceModel(kind().train(), quiet())
    assert not torch.equal(wrapped(IMAGES), wrapped(IMAGES))
    wrapped.destroy()
    wrapped.eval()
    assert torch.equal(wrapped(IMAGES), kind().eval()(IMAGES))


FULL_SIZE: dict[str, tuple[Any, tuple[int, ...]]] = {
    "U-Net": (lambda: UNet(64), (1, 3, 256, 256)),
    "ViT-B/16": (lambda: tv.vit_b_16(), (1, 3, 224, 224)),
}


@pytest.mark.parametrize("name", FULL_SIZE)
def test_networks_of_full_size_have_a_profile_and_a_formula_for_every_op(name: str) -> None:
    make, shape = FULL_SIZE[name]
    with torch.device("meta"):
        model = Squared(make().half())
        images = torch.empty(shape, dtype=torch.half)
    assert names(ipu_model.profile_module(model, images, quiet(), training=True)) == set()
