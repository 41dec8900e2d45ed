"""The training program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import poptorch
from ipu_course import engine
from ipu_course.datasets.cifar10_pictures import PictureDataset, ShapePictures
from ipu_course.datasets.cifar10_source import AUTO, cifar10
from ipu_course.errors import CourseError
from ipu_course.ladder import climb, host_of, published_ladder
from ipu_course.programs.train.ipu_options import make_optimiser, training_options
from ipu_course.programs.train.ladder_table import table
from ipu_course.programs.train.loading import host_transform, loading, measured_host
from ipu_course.programs.train.model import training_module
from ipu_course.programs.train.profiles import compilation_text, epoch_text, modelled, seconds_text
from ipu_course.programs.train.settings import Settings, check_data
from ipu_course.programs.train.training import train_epoch

if TYPE_CHECKING:
    from ipu_course.engine import HostWork, Profile


def run_program(settings: Settings) -> None:
    """Train the classifier, or print what the IPU Model says of it.

    Raises ``CourseError`` when settings, data, model and PopTorch do not go together.
    """
    if settings.debug:
        poptorch.setLogLevel("DEBUG")
    try:
        if settings.ladder:
            print(table(climb(), published_ladder()))
        else:
            _run(settings)
    except (poptorch.Error, AssertionError) as problem:  # PopTorch raises both
        if settings.debug or not str(problem):
            raise
        raise CourseError(f"{problem}{_what_helps(str(problem))} (--debug shows where)") from problem


def _what_helps(problem: str) -> str:
    """The options of this program that help when memory runs out."""
    if "out of memory" not in problem:
        return ""
    return (
        " With this program: --precision 16.16, a smaller --batch-size with more --gradient-accumulation, or --split "
        "with more layers; --profile-only shows what takes the memory."
    )


def _run(settings: Settings) -> None:
    print(settings.as_namespace(), flush=True)
    images = cifar10(
        train=True,
        root=settings.data_folder,
        download=settings.download,
        source=settings.dataset,
        transform=host_transform(settings),
    )
    _tell_about_data(settings, images)
    check_data(settings, len(images))
    host = _host(settings, images)
    if settings.profile_only:
        _print_profile(settings, host, settings.calls_per_epoch(len(images)))
    else:
        _train(settings, images, host)


def _tell_about_data(settings: Settings, images: PictureDataset) -> None:
    if not isinstance(images, ShapePictures):
        print("Files already downloaded and verified")
    print("Data:", images.description, flush=True)
    if isinstance(images, ShapePictures) and settings.dataset == AUTO and not settings.profile_only:
        print(
            f"Notice: these are not CIFAR-10, whose files are not in {settings.data_folder!r} (--data-folder names "
            "another folder, --download fetches them). Losses and accuracies do not compare with CIFAR-10's."
        )


def _host(settings: Settings, images: PictureDataset) -> HostWork | None:
    """What the host costs in the modelled figures, told in a line."""
    host = measured_host(settings, images) if settings.measure_loader else host_of(settings)
    if host:
        print(f"Host in modelled times: {host.source}", flush=True)
    return host


def _print_profile(settings: Settings, host: HostWork | None, calls: int) -> None:
    profile = modelled(settings, host)
    print(engine.text_report(profile))
    print(f"An epoch of {calls} calls, {epoch_text(profile, calls)}")


def _train(settings: Settings, images: PictureDataset, host: HostWork | None) -> None:
    options = training_options(settings)
    if settings.seed is not None:
        torch.manual_seed(settings.seed)
    module = training_module(settings)
    training_model = poptorch.trainingModel(module, options, optimizer=make_optimiser(settings, module))
    calls = settings.calls_per_epoch(len(images))
    _tell_about_training(settings, calls)
    with loading(settings, options, images) as loader:
        for epoch in range(1, settings.epochs + 1):
            seconds = train_epoch(training_model, loader, epoch)
            first = epoch == 1
            if first:  # its first call has compiled the model
                profile = _profile(training_model, host)
            print(f"[Epoch {epoch:02d}] {_measured(seconds, first)}{_modelled(profile, calls, first)}", flush=True)


def _tell_about_training(settings: Settings, calls: int) -> None:
    factors = (settings.batch_size, settings.gradient_accumulation, settings.device_iterations, settings.replicas)
    product = " x ".join(map(str, factors))
    shorter = "" if settings.limit_batches else "; --limit-batches N makes it N calls"
    print(
        f"Training: {_counted(calls, 'call')} of {settings.images_per_call} images an epoch ({product}), "
        f"{_counted(settings.stages, 'stage')}{shorter}",
        flush=True,
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _profile(training_model: poptorch.PoplarExecutor, host: HostWork | None) -> Profile | str | None:
    """The modelled profile, why there is none, or ``None`` where there is no IPU Model."""
    try:
        return engine.profile(training_model, host)
    except poptorch.Error as problem:
        return str(problem)  # the training itself goes on


def _measured(seconds: float, first: bool) -> str:
    return f"measured here: {seconds_text(seconds)} ({engine.measured_on()}{', compilation included' if first else ''})"


def _modelled(profile: Profile | str | None, calls: int, first: bool) -> str:
    if not profile:
        return ""
    if isinstance(profile, str):
        return f"; not modelled: {profile}"
    return f"; {epoch_text(profile, calls)}{compilation_text(profile) if first else ''}"
