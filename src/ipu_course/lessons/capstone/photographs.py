"""The second capstone: what the host does for a CNN, and whether a mended loader keeps the IPU busy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable
from unittest.mock import patch

import torch

import poptorch
from ipu_course import engine, show
from ipu_course.ladder import published_ladder
from ipu_course.lessons.capstone import slow_program
from ipu_course.not_modelled import NOT_MODELLED
from ipu_course.published_resnet50 import published_resnet50

if TYPE_CHECKING:
    from ipu_course.engine import HostWork, ModelledModule, Profile

# Assumed in this lesson, as in lesson 10: the time to decode and crop a photograph. The host has 16 cores.
PHOTOGRAPH_SECONDS, CORES = 0.002, 16
BUSY = 0.95  # of the rate that the IPU alone reaches
NEAR = 1e-4

MakeOptions = Callable[[], poptorch.Options]
MakeLoader = Callable[[poptorch.Options, Any], Any]


@dataclass(frozen=True)
class LoaderChoice:
    """How a learner's loader loads; ``batch_size`` is its micro-batch."""

    asynchronous: bool
    workers: int
    batch_size: int


@dataclass(frozen=True)
class LoadedRun:
    """A program with its loader: the choice, the weights that it ends with, and the options it ran with."""

    choice: LoaderChoice
    weights: tuple[torch.Tensor, ...]
    options: poptorch.Options


class NoLoader(Exception):
    """A learner's function made no ``poptorch.DataLoader``."""


def run_program(make_options: MakeOptions, make_loader: MakeLoader) -> LoadedRun:
    """Train the tiny network with a learner's options and loader.

    The loader that runs here loads in this process: its mode and workers are only noted, because they do not change
    which images come in which order. Raises ``NoLoader`` when ``make_loader`` makes none.
    """
    options = make_options()
    choices: list[LoaderChoice] = []
    real = poptorch.DataLoader.__init__

    def noted(loader: Any, options: Any, dataset: Any, batch_size: int = 1, *rest: Any, **more: Any) -> None:
        names = ("shuffle", "num_workers", "drop_last", "persistent_workers", "auto_distributed_partitioning", "mode")
        given = {**dict(zip(names, rest)), **more}
        mode = given.pop("mode", poptorch.DataLoaderMode.Sync)
        workers = int(given.pop("num_workers", 0))
        for name in ("persistent_workers", "async_options", "worker_init_fn", "rebatched_worker_size",
                     "prefetch_factor"):  # fmt: skip
            given.pop(name, None)
        choices.append(LoaderChoice(mode != poptorch.DataLoaderMode.Sync, workers, batch_size))
        real(loader, options, dataset, batch_size=batch_size, **given)

    with patch.object(poptorch.DataLoader, "__init__", noted):  # whatever name a learner gave the class
        loader = make_loader(options, slow_program.photographs())
    if not choices or not isinstance(loader, poptorch.DataLoader):
        raise NoLoader
    return LoadedRun(choices[-1], tuple(slow_program.train(options, loader)), options)


@lru_cache(maxsize=1)
def run_as_it_is() -> LoadedRun:
    """Run the program as it is."""
    return run_program(slow_program.make_options, slow_program.make_loader)


def same_results(run: LoadedRun) -> bool:
    """Tell whether a run ends with the weights of the program as it is."""
    return all(torch.allclose(one, other, atol=NEAR) for one, other in zip(run.weights, run_as_it_is().weights))


def host_of(choice: LoaderChoice) -> HostWork:
    """Return the host's work for a choice of the loader."""
    fitted = published_ladder().host
    return engine.host_work(
        PHOTOGRAPH_SECONDS, fitted.seconds_per_call, choice.asynchronous, choice.workers,
        "assumed in lesson 17: 2 ms a photograph; a call costs what it does in the workshop's program (fitted)",
        cores_per_host=CORES,
    )  # fmt: skip


def profile_run(program: ModelledModule, run: LoadedRun) -> Profile:
    """Return the full-size ResNet-50 with a run's options and loader."""
    return program.profile(
        host_of(run.choice),
        gradient_accumulation=int(run.options.Training.gradient_accumulation),
        device_iterations=int(run.options.device_iterations),
    )


@engine.needs_the_model
def full_size_cnn() -> ModelledModule:
    """Capture ResNet-50 on photographs of 224 x 224, as lesson 10 does."""
    return published_resnet50()


def show_slow_program(program: ModelledModule) -> None:
    """Show host and device over a call of the program as it is, and its rate beside that of the IPU alone."""
    if program is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    profile = profile_run(program, run_as_it_is())
    show.host_and_device(profile, "The IPU waits while the host decodes the next photographs.")
    show.table([{
        "images/s (modelled)": f"{profile.samples_per_second:,.0f}",
        "of the IPU alone (modelled)": f"{profile.device_samples_per_second:,.0f}",
        "limited by (modelled)": profile.limited_by,
    }])  # fmt: skip


@engine.needs_the_model
def waiting_percent(program: ModelledModule) -> float:
    """Return the percentage of the IPU's own rate that the program as it is does not reach."""
    profile = profile_run(program, run_as_it_is())
    return round(100 * (1 - profile.samples_per_second / profile.device_samples_per_second), 1)
