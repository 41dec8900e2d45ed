"""A few steps really executed on this machine, and the rate measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

import poptorch
from ipu_course import engine
from ipu_course.errors import CourseError
from ipu_course.programs.bench.module import Benchmark, benchmark_module, make_optimiser, options_for
from ipu_course.programs.bench.settings import BenchSettings, check_settings
from ipu_course.programs.running import dtypes

SEED = 0
CLASSES = 1000


@dataclass(frozen=True)
class Measured:
    """Seconds of each step as executed on ``machine`` ("CPU" or "IPU"); the first one includes compilation."""

    settings: BenchSettings
    step_seconds: tuple[float, ...]
    machine: str

    @property
    def images_per_second(self) -> float:
        """Images a second over all steps but the first."""
        later = self.step_seconds[1:]
        return len(later) * self.settings.images_per_step / sum(later)


def reduced(settings: BenchSettings, batch_size: int, accumulation: int | None, steps: int) -> BenchSettings:
    """Return the part of a benchmark that is executed: one replica, a small batch, as few micro-batches as possible."""
    return replace(
        settings,
        batch_size=batch_size,
        gradient_accumulation=accumulation or settings.least_accumulation,
        device_iterations=settings.least_iterations,
        replicas=1,
        instances=1,
        repeat=steps,
    )


def measure(settings: BenchSettings) -> Measured:
    """Execute ``settings.repeat`` steps with random images, the same ones in every step.

    Raises ``CourseError`` when PopTorch or the network refuses the settings.
    """
    check_settings(settings)
    torch.manual_seed(SEED)
    options = options_for(settings)
    options.showCompilationProgressBar(False)
    if engine.is_available():  # the IPU Model runs on the CPU also what would not fit an IPU
        options._Popart.setEngineOptions({"debug.allowOutOfMemory": "true"})
    model = _wrapped(benchmark_module(settings), settings, options)
    inputs = _random_inputs(settings)
    seconds = []
    try:
        for _ in range(settings.repeat):
            start = time.perf_counter()
            model(*inputs)
            seconds.append(time.perf_counter() - start)
    except (poptorch.Error, AssertionError, ValueError) as problem:  # torch's norms raise ValueError
        raise CourseError(f"--run: {problem}; a larger --run-batch-size or --image-size may help") from problem
    finally:
        model.destroy()
    return Measured(settings, tuple(seconds), engine.measured_on())


def _wrapped(module: Benchmark, settings: BenchSettings, options: poptorch.Options) -> poptorch.PoplarExecutor:
    if settings.training:
        return poptorch.trainingModel(module, options, optimizer=make_optimiser(settings, module))
    return poptorch.inferenceModel(module, options)


def _random_inputs(settings: BenchSettings) -> tuple[torch.Tensor, ...]:
    """Images, and labels in training, of one step."""
    count, size = settings.images_per_step, settings.image_size
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    if not settings.eight_bit_io:
        images = (images.float() / 255 - 0.5).to(dtypes(settings.precision)[0])
    return (images, torch.randint(0, CLASSES, (count,))) if settings.training else (images,)
