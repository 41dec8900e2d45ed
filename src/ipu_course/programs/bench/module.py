"""What runs on the IPUs: a network in the precision asked for, split over them, with its loss in training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

import poptorch
from ipu_course.models import NormaliseOnDevice
from ipu_course.programs.bench.layers import stage_starts
from ipu_course.programs.bench.networks import network
from ipu_course.programs.bench.settings import Settings

DTYPES = {"16": torch.float16, "32": torch.float32}


def compute_dtype(settings: Settings) -> torch.dtype:
    """The type that the network computes in: the first half of the precision."""
    return DTYPES[settings.precision.split(".")[0]]


def weight_dtype(settings: Settings) -> torch.dtype:
    """The type that weights are kept and updated in: the second half of the precision."""
    return DTYPES[settings.precision.split(".")[1]]


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


def benchmark_module(settings: Settings, device: str = "cpu") -> Benchmark:
    """The network of the settings, untrained; on the device "meta" it has shapes and no numbers.

    Raises ``SettingsError`` for unknown models and layers, and for splits that leave a stage empty.
    """
    starts = stage_starts(settings)
    with torch.device(device):
        model = network(settings)
        _to_precision(model, settings)
        normalise = NormaliseOnDevice(compute_dtype(settings)) if settings.eight_bit_io else None
    for ipu, name in enumerate(starts, start=1):
        parent, _, own_name = name.rpartition(".")
        setattr(model.get_submodule(parent), own_name, poptorch.BeginBlock(model.get_submodule(name), ipu_id=ipu))
    return Benchmark(model, normalise, settings.label_smoothing).train(settings.training)


def _to_precision(model: nn.Module, settings: Settings) -> None:
    """Keep the weights in one type and cast them, where that is another, each time they are used."""
    computed, kept = compute_dtype(settings), weight_dtype(settings)
    model.to(computed)
    if computed == kept:
        return
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().to(kept)))
            # unsafe: torch checks whether the type stays, and changing it is the point.
            parametrize.register_parametrization(module, name, Cast(computed), unsafe=True)


def example_micro_batch(settings: Settings) -> tuple[Tensor, ...]:
    """Images and, in training, labels of one micro-batch: shapes and types, no numbers."""
    shape = (settings.batch_size, 3, settings.image_size, settings.image_size)
    dtype = torch.uint8 if settings.eight_bit_io else compute_dtype(settings)
    images = torch.empty(shape, dtype=dtype, device="meta")
    if not settings.training:
        return (images,)
    return images, torch.empty(settings.batch_size, dtype=torch.int64, device="meta")
