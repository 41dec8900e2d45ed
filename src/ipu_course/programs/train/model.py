"""What runs on the IPUs: a torchvision classifier, split over them, with its loss and accuracy."""

from __future__ import annotations

import difflib
import itertools
from typing import Any, Iterable

import torch
import torchvision
from torch import nn
from torch.func import functional_call

import poptorch
from ipu_course.errors import SettingsError
from ipu_course.models import ClassifierWithLoss, NormaliseOnDevice
from ipu_course.programs.train.settings import NO_SPLIT, Settings

_DTYPES = {"16": torch.float16, "32": torch.float32}
# With auxiliary classifiers these two would give several results in training.
_PLAIN = {"aux_logits": False, "init_weights": True}


def image_dtype(settings: Settings) -> torch.dtype:
    """The type that images are normalised in: the first half of the precision."""
    return _DTYPES[settings.precision.split(".")[0]]


def model_dtype(settings: Settings) -> torch.dtype:
    """The type of the weights: the second half of the precision."""
    return _DTYPES[settings.precision.split(".")[1]]


def training_module(settings: Settings) -> ClassifierWithLoss:
    """The classifier that the settings name, untrained, split over its IPUs, in the precision asked for.

    Raises ``SettingsError`` when torchvision has no such model, the model no such layer, or images of that
    size do not pass through it.
    """
    model = _classifier(settings)
    _check_images_pass(model, settings)
    split(model, settings)
    normalise = NormaliseOnDevice(image_dtype(settings)) if settings.eight_bit_io else None
    return ClassifierWithLoss(model, normalise).to(model_dtype(settings))


def split(model: nn.Module, settings: Settings) -> None:
    """Let each of the settings' layers begin on the next IPU, in the order of the model.

    Raises ``SettingsError`` when the model has no layer of that name.
    """
    layers = dict(model.named_modules())
    del layers[""]
    for name in settings.split_layers:
        if name not in layers:
            raise SettingsError(
                f"--split {name}: {settings.model} has no such layer; {nearest(name, layers)}; --split {NO_SPLIT} "
                "keeps the model on one IPU"
            )
    chosen = [name for name in layers if name in settings.split_layers]
    for ipu, name in enumerate(chosen, start=1):
        parent, _, own_name = name.rpartition(".")
        block = poptorch.BeginBlock(layers[name], ipu_id=ipu)
        setattr(model.get_submodule(parent), own_name, block)


def nearest(name: str, known: Iterable[str]) -> str:
    """The names most like ``name``, as the end of an error message."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return "nearest: " + ", ".join(close or known[:3])


def _classifier(settings: Settings) -> nn.Module:
    known = torchvision.models.list_models(module=torchvision.models)
    if settings.model not in known:
        raise SettingsError(
            f"--model {settings.model}: torchvision {torchvision.__version__} has no such classifier; "
            f"{nearest(settings.model, known)}"
        )
    try:
        model: nn.Module = torchvision.models.get_model(settings.model, weights=None, **_arguments(settings))
    except (ValueError, RuntimeError, AssertionError) as problem:  # torchvision raises all three for a wrong size
        raise _refused(settings, problem) from problem
    return model


def _arguments(settings: Settings) -> dict[str, Any]:
    """What some of torchvision's models have to be told besides."""
    if settings.model in ("googlenet", "inception_v3"):
        return _PLAIN
    if settings.model.startswith("vit_"):
        return {"image_size": settings.image_size}
    if settings.model.startswith("maxvit"):
        return {"input_size": (settings.image_size, settings.image_size)}
    return {}


def _check_images_pass(model: nn.Module, settings: Settings) -> None:
    """Send a micro-batch through the model, with shapes in place of numbers."""
    shape = (settings.batch_size, 3, settings.image_size, settings.image_size)
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
    try:
        with torch.no_grad():
            functional_call(model, shapes, (torch.empty(shape, device="meta"),))
    except (ValueError, RuntimeError, AssertionError) as problem:
        raise _refused(settings, problem) from problem


def _refused(settings: Settings, problem: Exception) -> SettingsError:
    size = settings.image_size
    reason = str(problem).strip().split("\n")[0] or "torchvision gives no reason"
    return SettingsError(
        f"--model {settings.model} cannot be trained with --image-size {size} and --batch-size {settings.batch_size} "
        f"({reason}); try a larger image, such as --image-size 224, or a larger batch"
    )
