"""PopTorch options of the MNIST program."""

from __future__ import annotations

import sys

import poptorch
from ipu_course.programs.mnist.model import BLOCKS
from ipu_course.programs.mnist.settings import INFERENCE_ITERATIONS, PIPELINED, Settings


def execution_strategy(settings: Settings) -> poptorch.PipelinedExecution | poptorch.ShardedExecution:
    """The chosen strategy: one stage per block, stage i on IPU i."""
    stages = [poptorch.Stage(block).ipu(ipu) for ipu, block in enumerate(BLOCKS)]
    if settings.strategy == PIPELINED:
        return poptorch.PipelinedExecution(*stages)
    return poptorch.ShardedExecution(*stages)


def training_options(settings: Settings) -> poptorch.Options:
    """Options for training, not yet frozen."""
    options = poptorch.Options()
    # A bar is redrawn in place: in a file or a pipe it would only leave its remains.
    options.showCompilationProgressBar(sys.stderr.isatty())
    if settings.seed is not None:
        options.randomSeed(settings.seed)
    options.deviceIterations(settings.device_iterations)
    options.Training.gradientAccumulation(settings.gradient_accumulation)
    options.setExecutionStrategy(execution_strategy(settings))
    # All results of a step, so that loss and accuracy count every image; it costs transfers to the host.
    options.outputMode(poptorch.OutputMode.All)
    if settings.offload_optimiser:
        options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    if settings.profile:
        options.enableProfiling(settings.profile_dir)
    return options


def inference_options(training: poptorch.Options) -> poptorch.Options:
    """Options for testing: those for training, without accumulation and with more device iterations."""
    options = training.clone()
    options.Training.gradientAccumulation(1)
    options.deviceIterations(INFERENCE_ITERATIONS)
    return options
