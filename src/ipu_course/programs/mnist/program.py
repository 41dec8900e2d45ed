"""The MNIST pipelining program."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

import torch

import poptorch
from ipu_course.datasets import ImageDataset, mnist
from ipu_course.errors import CourseError
from ipu_course.programs.mnist.ipu_options import inference_options, training_options
from ipu_course.programs.mnist.model import BLOCKS, Network, TrainingModelWithLoss
from ipu_course.programs.mnist.settings import Settings, check_data
from ipu_course.programs.mnist.training import test, train


def run_program(settings: Settings) -> None:
    """Train the network, test it and print the accuracy.

    Raises ``CourseError`` when settings, data and PopTorch do not go together.
    """
    if settings.debug:
        poptorch.setLogLevel("DEBUG")
    # For so small a model, more threads would only wait for each other and for the loader's process.
    torch.set_num_threads(1)
    training_images, test_images = _load(settings)
    check_data(settings, len(training_images), len(test_images))
    try:
        _train_and_test(settings, training_images, test_images)
    except (poptorch.Error, AssertionError) as problem:  # PopTorch raises both
        if settings.debug or not str(problem):
            raise
        raise CourseError(f"{problem} (--debug shows where)") from problem
    if settings.profile:
        print(f"Profile: one report for each model below {settings.profile_dir}")


def _load(settings: Settings) -> tuple[ImageDataset, ImageDataset]:
    training_images = mnist(train=True, root=settings.data_dir, download=settings.download)
    test_images = mnist(train=False, root=settings.data_dir)
    for images in (training_images, test_images):
        print("Data:", images.description)
    return training_images, test_images


def _train_and_test(settings: Settings, training_images: ImageDataset, test_images: ImageDataset) -> None:
    options = training_options(settings)
    model = Network()
    training_model = poptorch.trainingModel(
        TrainingModelWithLoss(model),
        options,
        optimizer=poptorch.optim.AdamW(model.parameters(), lr=settings.learning_rate),
    )
    with _loading(options, training_images, settings.batch_size) as training_data:
        print(
            f"Training: {len(training_data)} steps of {settings.training_step} images an epoch "
            f"({settings.batch_size} x {settings.gradient_accumulation} x {settings.device_iterations}), "
            f"{settings.strategy} over {len(BLOCKS)} IPUs"
        )
        train(training_model, training_data, settings.epochs)
    # Frees the four IPUs: otherwise the inference model would need four more.
    training_model.detachFromDevice()
    _test(settings, model, inference_options(options), test_images)


def _test(settings: Settings, model: Network, options: poptorch.Options, images: ImageDataset) -> None:
    model.eval()
    inference_model = poptorch.inferenceModel(model, options)
    with _loading(options, images, settings.test_batch_size) as test_data:
        tested, step = len(test_data) * settings.test_step, settings.test_step
        if tested < len(images):
            print(f"Testing on {tested} of {len(images)} images: the others fill no step of {step}")
        print(f"Accuracy on test set: {test(inference_model, test_data):0.2f}%")


@contextmanager
def _loading(options: poptorch.Options, images: ImageDataset, batch_size: int) -> Iterator[poptorch.DataLoader]:
    """A loader that works in a process of its own, which ends with the block."""
    loader = poptorch.DataLoader(
        options,
        images,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        mode=poptorch.DataLoaderMode.Async,
    )
    try:
        yield loader
    finally:
        loader.terminate()
