"""What runs on the IPUs: a network from torchvision's blocks, split over them, with its options and optimiser."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torchvision.models.efficientnet import EfficientNet, MBConv, MBConvConfig
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

import poptorch
from ipu_course.errors import SettingsError
from ipu_course.models import NormaliseOnDevice
from ipu_course.programs.bench.layers import EFFICIENTNET_BLOCKS, stage_starts
from ipu_course.programs.bench.page import model_data
from ipu_course.programs.bench.settings import BenchSettings
from ipu_course.programs.running import begin_stages, dtypes

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
# PopART's RecomputationType: nothing, standard (checkpoints chosen by liveness), and that of pipelines.
NO_RECOMPUTATION, STANDARD_RECOMPUTATION, PIPELINE_RECOMPUTATION = 0, 1, 3
LEARNING_RATE, LOSS_SCALING = 0.01, 128.0


class Cast(nn.Module):
    """A parameter in another type than it is kept in."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, parameter: Tensor) -> Tensor:
        return parameter.to(self.dtype)


class Benchmark(nn.Module):
    """Images [N, 3, S, S] to logits [N, 1000]; with labels [N] to the loss []."""

    def __init__(self, model: nn.Module, normalise: nn.Module | None, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.normalise = normalise
        self.label_smoothing = label_smoothing

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        if self.normalise is not None:
            images = self.normalise(images)
        logits: Tensor = self.model(images)
        if labels is None:
            return logits
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=self.label_smoothing)
        return poptorch.identity_loss(loss, reduction="none")


def benchmark_module(settings: BenchSettings, device: str = "cpu") -> Benchmark:
    """Build the network of the settings, untrained; on the device "meta" it has shapes and no numbers.

    Raises ``SettingsError`` for unknown models and layers, and for splits that leave a stage empty.
    """
    starts = stage_starts(settings)
    with torch.device(device):
        model = network(settings)
        _to_precision(model, settings)
        normalise = NormaliseOnDevice(dtypes(settings.precision)[0]) if settings.eight_bit_io else None
    begin_stages(model, starts)
    return Benchmark(model, normalise, settings.label_smoothing).train(settings.training)


def _to_precision(model: nn.Module, settings: BenchSettings) -> None:
    """Keep the weights in one type and cast them, where that is another, each time they are used."""
    computed, kept = dtypes(settings.precision)
    model.to(computed)
    if computed == kept:
        return
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().to(kept)))
            # unsafe: torch checks whether the type stays, and changing it is the point.
            parametrize.register_parametrization(module, name, Cast(computed), unsafe=True)


def example_micro_batch(settings: BenchSettings) -> tuple[Tensor, ...]:
    """Images and, in training, labels of one micro-batch: shapes and types, no numbers."""
    shape = (settings.batch_size, 3, settings.image_size, settings.image_size)
    dtype = torch.uint8 if settings.eight_bit_io else dtypes(settings.precision)[0]
    images = torch.empty(shape, dtype=dtype, device="meta")
    if not settings.training:
        return (images,)
    return images, torch.empty(settings.batch_size, dtype=torch.int64, device="meta")


class GroupedMBConv(MBConv):  # type: ignore[misc]  # torchvision has no types
    """EfficientNet's block whose convolution in the middle has groups of ``group_dim`` channels, not of one.

    Where 16 does not divide the channels, groups are as large as the largest divisor below it.
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


def network(settings: BenchSettings) -> nn.Module:
    """Build the network that the settings name, in float32, with new weights.

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


def _norm_layer(settings: BenchSettings) -> Callable[..., nn.Module]:
    if settings.normalisation == "batch":
        return nn.BatchNorm2d
    return partial(nn.GroupNorm, settings.norm_groups)


def _resnet(data: Mapping[str, Any], settings: BenchSettings) -> nn.Module:
    made: nn.Module = ResNet(
        Bottleneck if data["bottleneck"] else BasicBlock,
        data["layers"],
        groups=data["groups"],
        width_per_group=data["width_per_group"],
        norm_layer=_norm_layer(settings),
    )
    return made


def _efficientnet(data: Mapping[str, Any], settings: BenchSettings) -> nn.Module:
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


def options_for(settings: BenchSettings) -> poptorch.Options:
    """Return the options of one instance, not yet frozen."""
    options = poptorch.Options()
    options.deviceIterations(settings.device_iterations)
    options.replicationFactor(settings.replicas_per_instance)
    if settings.shards > 1 and not settings.is_pipelined:
        options.setExecutionStrategy(poptorch.ShardedExecution())
    if settings.half_partials:
        options.Precision.setPartialsType(torch.half)
    if settings.stable_norm:
        options.enableStableNorm(True)
    if settings.data == "synthetic":
        options.enableSyntheticData(True)
    if settings.available_memory_proportion is not None:
        share = settings.available_memory_proportion
        options.setAvailableMemoryProportion({f"IPU{ipu}": share for ipu in range(settings.shards)})
    if settings.training:
        _set_training(options, settings)
    return options


def _set_training(options: poptorch.Options, settings: BenchSettings) -> None:
    options.Training.gradientAccumulation(settings.gradient_accumulation)
    location = poptorch.TensorLocationSettings().useOnChipStorage(not settings.variable_offloading)
    options.TensorLocations.setOptimizerLocation(location)
    if settings.recomputation:
        kind = PIPELINE_RECOMPUTATION if settings.is_pipelined else STANDARD_RECOMPUTATION
    else:
        kind = NO_RECOMPUTATION
    options._Popart.set("autoRecomputation", kind)


def make_optimiser(settings: BenchSettings, module: nn.Module) -> torch.optim.Optimizer:
    """Momentum or RMSprop, whose accumulators and state have the type of the weights."""
    kept = dtypes(settings.precision)[1]
    scaling = LOSS_SCALING if settings.precision.startswith("16") else 1.0
    if settings.optimiser == "momentum":
        return poptorch.optim.SGD(
            module.parameters(),
            lr=LEARNING_RATE,
            momentum=settings.momentum,
            loss_scaling=scaling,
            accum_type=kept,
            velocity_accum_type=kept,
            use_combined_accum=False,
        )
    return poptorch.optim.RMSprop(
        module.parameters(),
        lr=LEARNING_RATE,
        momentum=settings.momentum,
        loss_scaling=scaling,
        accum_type=kept,
        first_order_momentum_accum_type=kept,
        second_order_momentum_accum_type=torch.float32,
    )
