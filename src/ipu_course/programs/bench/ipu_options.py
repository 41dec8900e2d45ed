"""PopTorch options and optimiser of a benchmark."""

from __future__ import annotations

import torch
from torch import nn

import poptorch
from ipu_course.programs.bench.module import weight_dtype
from ipu_course.programs.bench.settings import Settings

# PopART's RecomputationType: nothing, standard (checkpoints chosen by liveness), and that of pipelines.
NO_RECOMPUTATION, STANDARD_RECOMPUTATION, PIPELINE_RECOMPUTATION = 0, 1, 3
LEARNING_RATE, LOSS_SCALING = 0.01, 128.0


def options_for(settings: Settings) -> poptorch.Options:
    """The options of one instance, not yet frozen."""
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


def _set_training(options: poptorch.Options, settings: Settings) -> None:
    options.Training.gradientAccumulation(settings.gradient_accumulation)
    location = poptorch.TensorLocationSettings().useOnChipStorage(not settings.variable_offloading)
    options.TensorLocations.setOptimizerLocation(location)
    if settings.recomputation:
        kind = PIPELINE_RECOMPUTATION if settings.is_pipelined else STANDARD_RECOMPUTATION
    else:
        kind = NO_RECOMPUTATION
    options._Popart.set("autoRecomputation", kind)


def make_optimiser(settings: Settings, module: nn.Module) -> torch.optim.Optimizer:
    """Momentum or RMSprop, whose accumulators and state have the type of the weights."""
    kept = weight_dtype(settings)
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
