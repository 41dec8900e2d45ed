"""What runs on the IPUs: a torchvision classifier, split over them, with its loss, its options and its optimiser."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
import torchvision
from torch import nn
from torch.func import functional_call

import poptorch
from ipu_course import engine
from ipu_course.errors import CourseError, SettingsError
from ipu_course.models import ClassifierWithLoss, NormaliseOnDevice
from ipu_course.programs.options import NO_SPLIT, nearest
from ipu_course.programs.running import begin_stages, dtypes
from ipu_course.programs.train.settings import TrainSettings

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule

# With their auxiliary classifiers these two would return several results in training.
_PLAIN = {"aux_logits": False, "init_weights": True}


def training_module(settings: TrainSettings) -> ClassifierWithLoss:
    """Return the classifier that the settings name, untrained, split over its IPUs, in its precision.

    Raises ``SettingsError`` when torchvision has no such model, when the model has no such layer, and when images
    of that size do not pass through it.
    """
    model = _classifier(settings)
    _check_images_pass(model, settings)
    layers = [name for name, _ in model.named_modules() if name]
    for name in settings.split_layers:
        if name not in layers:
            raise SettingsError(
                f"--split {name}: {settings.model} has no such layer; {nearest(name, layers)}; --split {NO_SPLIT} "
                "keeps the model on one IPU"
            )
    _check_no_stage_is_empty(model, settings.split_layers)
    begin_stages(model, [name for name in layers if name in settings.split_layers])
    images, weights = dtypes(settings.precision)
    normalise = NormaliseOnDevice(images) if settings.eight_bit_io else None
    return ClassifierWithLoss(model, normalise).to(weights)


def _check_no_stage_is_empty(model: nn.Module, split: tuple[str, ...]) -> None:
    leaves = [name for name, layer in model.named_modules() if not any(layer.children())]
    begun = {0: "the beginning of the model"}
    for name in split:
        first = next(place for place, leaf in enumerate(leaves) if f"{leaf}.".startswith(f"{name}."))
        if first in begun:
            raise SettingsError(
                f"--split {name}: there is no layer between it and {begun[first]}, so a stage would be empty; name "
                f"each layer once, such as {leaves[min(first + 1, len(leaves) - 1)]}, which comes after it"
            )
        begun[first] = name


def training_options(settings: TrainSettings) -> poptorch.Options:
    """Return the options for training, not yet frozen."""
    options = poptorch.Options()
    if settings.seed is not None:
        options.randomSeed(settings.seed)
    options.deviceIterations(settings.device_iterations)
    options.replicationFactor(settings.replicas)
    options.Training.gradientAccumulation(settings.gradient_accumulation)
    return options


def make_optimiser(settings: TrainSettings, module: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW; with 16-bit weights it scales gradients and keeps all but the second moments in 16 bits."""
    if settings.precision != "16.16":
        return poptorch.optim.AdamW(module.parameters(), lr=settings.learning_rate)
    return poptorch.optim.AdamW(
        module.parameters(),
        lr=settings.learning_rate,
        loss_scaling=1000,
        accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16,
        second_order_momentum_accum_type=torch.float32,
    )


def example_micro_batch(settings: TrainSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels of one micro-batch, all zeros: a profile needs only their shapes and types."""
    shape = (settings.batch_size, 3, settings.image_size, settings.image_size)
    dtype = torch.uint8 if settings.eight_bit_io else dtypes(settings.precision)[0]
    return torch.zeros(shape, dtype=dtype), torch.zeros(settings.batch_size, dtype=torch.int64)


def captured(settings: TrainSettings) -> ModelledModule:
    """Capture the training program once, to be profiled with other loops and hosts.

    Raises ``CourseError`` where there is no IPU Model.
    """
    if not engine.is_available():
        raise CourseError(
            "a modelled profile needs the IPU Model, which is not installed here; leave out --profile-only and "
            "--ladder to train on the IPUs of this machine and measure"
        )
    module = training_module(settings)
    optimiser = make_optimiser(settings, module)
    return engine.modelled_module(module, example_micro_batch(settings), training_options(settings), optimiser)


def _classifier(settings: TrainSettings) -> nn.Module:
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


def _arguments(settings: TrainSettings) -> dict[str, Any]:
    """Return the further arguments that some of torchvision's models need."""
    if settings.model in ("googlenet", "inception_v3"):
        return _PLAIN
    if settings.model.startswith("vit_"):
        return {"image_size": settings.image_size}
    if settings.model.startswith("maxvit"):
        return {"input_size": (settings.image_size, settings.image_size)}
    return {}


def _check_images_pass(model: nn.Module, settings: TrainSettings) -> None:
    """Send a micro-batch through the model, with shapes in place of numbers."""
    shape = (settings.batch_size, 3, settings.image_size, settings.image_size)
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
    try:
        with torch.no_grad():
            functional_call(model, shapes, (torch.empty(shape, device="meta"),))
    except (ValueError, RuntimeError, AssertionError) as problem:
        raise _refused(settings, problem) from problem


def _refused(settings: TrainSettings, problem: Exception) -> SettingsError:
    size = settings.image_size
    reason = str(problem).strip().split("\n")[0] or "torchvision gives no reason"
    return SettingsError(
        f"--model {settings.model} cannot be trained with --image-size {size} and --batch-size {settings.batch_size} "
        f"({reason}); try a larger image, such as --image-size 224, or a larger batch"
    )
