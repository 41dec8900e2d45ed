"""The MNIST pipelining program: it trains the network over four IPUs, tests it, and prints the accuracy."""

from __future__ import annotations

import sys

import torch
from tqdm import tqdm

import poptorch
from ipu_course.datasets import ImageDataset, mnist
from ipu_course.loops import accuracy
from ipu_course.programs.mnist.model import BLOCKS, Network, TrainingModelWithLoss
from ipu_course.programs.mnist.settings import INFERENCE_ITERATIONS, PIPELINED, MnistSettings, check_data
from ipu_course.programs.running import loading, refusals_in_a_line


def run_program(settings: MnistSettings) -> None:
    """Train the network, test it and print the accuracy.

    Raises ``CourseError`` when settings, data and PopTorch do not go together.
    """
    # More threads would only wait for each other and for the loader's process: the model is so small.
    torch.set_num_threads(1)
    training_images, test_images = _load(settings)
    check_data(settings, len(training_images), len(test_images))
    with refusals_in_a_line(settings.debug):
        _train_and_test(settings, training_images, test_images)
    if settings.profile:
        print(f"Profile: one report for each model below {settings.profile_dir}")


def training_options(settings: MnistSettings) -> poptorch.Options:
    """Return the options for training, not yet frozen."""
    options = poptorch.Options()
    # A bar is redrawn in place: in a file or a pipe it would leave only remains.
    options.showCompilationProgressBar(sys.stderr.isatty())
    if settings.seed is not None:
        options.randomSeed(settings.seed)
    options.deviceIterations(settings.device_iterations)
    options.Training.gradientAccumulation(settings.gradient_accumulation)
    stages = [poptorch.Stage(block).ipu(ipu) for ipu, block in enumerate(BLOCKS)]
    execution = poptorch.PipelinedExecution if settings.strategy == PIPELINED else poptorch.ShardedExecution
    options.setExecutionStrategy(execution(*stages))
    # All results of a step, so that loss and accuracy count every image; this costs transfers to the host.
    options.outputMode(poptorch.OutputMode.All)
    if settings.offload_optimiser:
        options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    if settings.profile:
        options.enableProfiling(settings.profile_dir)
    return options


def inference_options(training: poptorch.Options) -> poptorch.Options:
    """Return the options for testing: those for training, without accumulation and with more device iterations."""
    options = training.clone()
    options.Training.gradientAccumulation(1)
    options.deviceIterations(INFERENCE_ITERATIONS)
    return options


def train(training_model: poptorch.PoplarExecutor, training_data: poptorch.DataLoader, epochs: int) -> None:
    """Train for some epochs, showing loss and accuracy of every step."""
    for epoch in range(1, epochs + 1):
        print(f"Epoch {epoch}/{epochs}", flush=True)
        # disable=None: there is a bar only where there is a terminal to redraw it.
        bar = tqdm(training_data, total=len(training_data), disable=None)
        no_bar, progress = bar.disable, ""  # asked now: at its end every bar calls itself disabled
        for images, labels in bar:
            logits, losses = training_model(images, labels)
            mean_loss = torch.mean(losses).item()
            progress = f"Loss:{mean_loss:0.4f} | Accuracy:{accuracy(logits, labels):0.2f}%"
            bar.set_description(progress)
        if no_bar:
            print(progress, flush=True)


def test(inference_model: poptorch.PoplarExecutor, test_data: poptorch.DataLoader) -> float:
    """Return the mean accuracy over the steps of the test data, in per cent."""
    bar = tqdm(test_data, total=len(test_data), disable=None)
    return sum(accuracy(inference_model(images), labels) for images, labels in bar) / len(test_data)


def _load(settings: MnistSettings) -> tuple[ImageDataset, ImageDataset]:
    training_images = mnist(train=True, root=settings.data_dir, download=settings.download)
    test_images = mnist(train=False, root=settings.data_dir)
    for images in (training_images, test_images):
        print("Data:", images.description)
    if settings.data_dir != MnistSettings.data_dir and "bundled" in test_images.description:
        print(f"Notice: this is not MNIST, whose files are not in {settings.data_dir!r} (--download fetches them).")
    return training_images, test_images


def _train_and_test(settings: MnistSettings, training_images: ImageDataset, test_images: ImageDataset) -> None:
    options = training_options(settings)
    model = Network()
    optimiser = poptorch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    training_model = poptorch.trainingModel(TrainingModelWithLoss(model), options, optimizer=optimiser)
    with loading(options, training_images, settings.batch_size, asynchronous=True, shuffle=True) as training_data:
        print(
            f"Training: {len(training_data)} steps of {settings.training_step} images an epoch "
            f"({settings.batch_size} x {settings.gradient_accumulation} x {settings.device_iterations}), "
            f"{settings.strategy} over {len(BLOCKS)} IPUs"
        )
        train(training_model, training_data, settings.epochs)
    # Frees the four IPUs: otherwise the inference model would need four more.
    training_model.detachFromDevice()
    _test(settings, model, inference_options(options), test_images)


def _test(settings: MnistSettings, model: Network, options: poptorch.Options, images: ImageDataset) -> None:
    inference_model = poptorch.inferenceModel(model.eval(), options)
    with loading(options, images, settings.test_batch_size, asynchronous=True, shuffle=True) as test_data:
        tested = len(test_data) * settings.test_step
        if tested < len(images):
            print(f"Testing on {tested} of {len(images)} images: the others do not fill a step of {settings.test_step}")
        print(f"Accuracy on test set: {test(inference_model, test_data):0.2f}%")
