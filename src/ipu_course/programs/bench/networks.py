"""The networks, built from torchvision's blocks."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Mapping

from torch import nn
from torchvision.models.efficientnet import EfficientNet, MBConv, MBConvConfig
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from ipu_course.errors import SettingsError
from ipu_course.programs.bench.configurations import model_data
from ipu_course.programs.bench.layers import EFFICIENTNET_BLOCKS
from ipu_course.programs.bench.settings import Settings

# Expand ratio of the first stage, then kernel, stride, input and output channels of all seven (EfficientNet-B0).
EFFICIENTNET_STAGES = (
    (3, 1, 32, 16),
    (3, 2, 16, 24),
    (5, 2, 24, 40),
    (3, 2, 40, 80),
    (5, 1, 80, 112),
    (5, 2, 112, 192),
    (3, 1, 192, 320),
)
DROPPED_BLOCKS = 0.2


class GroupedMBConv(MBConv):  # type: ignore[misc]  # torchvision has no types
    """EfficientNet's block whose convolution in the middle has groups of ``group_dim`` channels, not of one.

    Where ``group_dim`` does not divide the channels, groups are as large as the largest divisor below it.
    """

    def __init__(self, *arguments: Any, group_dim: int = 1, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for layer in self.block:
            convolution = layer[0] if isinstance(layer, nn.Sequential) else None
            if isinstance(convolution, nn.Conv2d) and convolution.groups == convolution.in_channels > 1:
                layer[0] = _with_groups_of(convolution, group_dim)


def _with_groups_of(depthwise: nn.Conv2d, group_dim: int) -> nn.Conv2d:
    channels = depthwise.in_channels
    largest = max(size for size in range(1, group_dim + 1) if channels % size == 0)
    kernel, stride, padding = depthwise.kernel_size, depthwise.stride, depthwise.padding
    groups = channels // largest
    return nn.Conv2d(channels, channels, kernel, stride, padding, groups=groups, bias=False)  # type: ignore[arg-type]


def network(settings: Settings) -> nn.Module:
    """The network that the settings name, in float32, with new weights.

    Raises ``SettingsError`` when there is no such model, or groups of normalisation do not divide its channels.
    """
    data = model_data(settings.model)
    build: Callable[..., nn.Module] = _resnet if data["family"] == "resnet" else _efficientnet
    try:
        return build(data, settings)
    except ValueError as problem:  # what GroupNorm raises
        raise SettingsError(
            f"--norm-groups {settings.norm_groups}: {settings.model} has numbers of channels that it does not divide "
            f"({problem}); use --norm-groups 4, or --normalisation batch"
        ) from problem


def _norm_layer(settings: Settings) -> Callable[..., nn.Module]:
    if settings.normalisation == "batch":
        return nn.BatchNorm2d
    return partial(nn.GroupNorm, settings.norm_groups)


def _resnet(data: Mapping[str, Any], settings: Settings) -> nn.Module:
    made: nn.Module = ResNet(
        Bottleneck if data["bottleneck"] else BasicBlock,
        data["layers"],
        groups=data["groups"],
        width_per_group=data["width_per_group"],
        norm_layer=_norm_layer(settings),
    )
    return made


def _efficientnet(data: Mapping[str, Any], settings: Settings) -> nn.Module:
    block = partial(GroupedMBConv, group_dim=settings.group_dim)
    stages = [
        MBConvConfig(
            settings.expand_ratio if stage else 1,
            *shape,
            blocks,
            width_mult=data["width"],
            depth_mult=data["depth"],
            block=block,
        )
        for stage, (shape, blocks) in enumerate(zip(EFFICIENTNET_STAGES, EFFICIENTNET_BLOCKS))
    ]
    made: nn.Module = EfficientNet(stages, data["dropout"], DROPPED_BLOCKS, norm_layer=_norm_layer(settings))
    return made
