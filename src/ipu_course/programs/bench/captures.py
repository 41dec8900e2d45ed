"""Benchmarks captured once each, to be modelled with other loops, replicas and machines."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import poptorch
from ipu_course import engine
from ipu_course.errors import CourseError, SettingsError
from ipu_course.programs.bench.module import benchmark_module, example_micro_batch, make_optimiser, options_for
from ipu_course.programs.bench.settings import BenchSettings

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

# A benchmark of the largest network holds some megabytes: enough for a sweep and for the other machines.
REMEMBERED = 8


def profile_of(settings: BenchSettings) -> Profile:
    """Return the modelled profile of one step of a benchmark, over all its instances.

    Raises ``CourseError`` where there is no IPU Model or it refuses the program.
    """
    changes: dict[str, object] = {
        "machine": settings.machine,
        "replicas": settings.replicas_per_instance,
        "processes": settings.instances,
        "device_iterations": settings.device_iterations,
        "synthetic_data": settings.data == "synthetic",
    }
    if settings.training:
        changes["gradient_accumulation"] = settings.gradient_accumulation
    if settings.is_pipelined and settings.schedule == "interleaved":
        changes["execution"] = "interleaved"
    try:
        return captured(settings).profile(None, **changes)
    except (poptorch.Error, AssertionError) as problem:
        raise _refused(problem) from problem


def captured(settings: BenchSettings) -> ModelledModule:
    """Return the benchmark's program; benchmarks that differ in loops, replicas, machine or data share it.

    Raises ``CourseError`` where there is no IPU Model or it refuses the program.
    """
    return _captured(_shared(settings))


def _shared(settings: BenchSettings) -> BenchSettings:
    """Return the settings that stand for all benchmarks with this program."""
    return replace(
        settings,
        machine="",
        replicas=1,
        instances=1,
        gradient_accumulation=settings.least_accumulation,
        device_iterations=settings.least_iterations,
        data="generated",
        repeat=1,
        schedule="grouped" if settings.is_pipelined else "sequential",
    )


@lru_cache(maxsize=REMEMBERED)
def _captured(settings: BenchSettings) -> ModelledModule:
    module = benchmark_module(settings, "meta")
    optimiser = make_optimiser(settings, module) if settings.training else None
    try:
        program = engine.modelled_module(module, example_micro_batch(settings), options_for(settings), optimiser)
    except (poptorch.Error, AssertionError) as problem:
        raise _refused(problem) from problem
    except (ValueError, RuntimeError) as problem:  # what torch raises for sizes that do not pass
        raise SettingsError(
            f"--model {settings.model} does not take --image-size {settings.image_size} with --batch-size "
            f"{settings.batch_size} ({str(problem).splitlines()[0]}); try larger ones"
        ) from problem
    if program is engine.NOT_MODELLED:
        raise CourseError(f"{engine.NOT_HERE} --run measures what runs here.")
    return program


def _refused(problem: Exception) -> CourseError:
    """PopTorch's refusal without the class that it puts before its message."""
    return CourseError(str(getattr(problem, "message", problem)))
