"""The training program: what it runs, and what it prints."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm

import poptorch
from ipu_course import engine
from ipu_course.ladder import climb, host_of, published_ladder
from ipu_course.programs.running import refusals_in_a_line
from ipu_course.programs.text import counted
from ipu_course.programs.train.cifar10 import AUTO, PictureDataset, ShapePictures, cifar10
from ipu_course.programs.train.ladder_table import KIB, ladder_table
from ipu_course.programs.train.loading import host_transform, loading, measured_host
from ipu_course.programs.train.model import captured, make_optimiser, training_module, training_options
from ipu_course.programs.train.settings import TrainSettings, check_data

if TYPE_CHECKING:
    from ipu_course.engine import HostWork, Profile

OUT_OF_MEMORY = (
    " With this program: --precision 16.16, a smaller --batch-size with more --gradient-accumulation, or --split "
    "with more layers; --profile-only shows what takes the memory."
)


def run_program(settings: TrainSettings) -> None:
    """Train the classifier, or print its modelled profile.

    Raises ``CourseError`` when settings, data, model and PopTorch do not go together.
    """
    with refusals_in_a_line(settings.debug, OUT_OF_MEMORY):
        if settings.ladder:
            print(ladder_table(climb(), published_ladder()))
        else:
            _run(settings)


def _run(settings: TrainSettings) -> None:
    print(settings.as_namespace(), flush=True)
    images = cifar10(
        train=True,
        root=settings.data_folder,
        download=settings.download,
        source=settings.dataset,
        transform=host_transform(settings),
    )
    _print_data(settings, images)
    check_data(settings, len(images))
    host = measured_host(settings, images) if settings.measure_loader else host_of(settings)
    if host:
        print(f"Host in modelled times: {host.source}", flush=True)
    calls = settings.calls_per_epoch(len(images))
    if settings.profile_only:
        profile = captured(settings).profile(host)
        print(engine.text_report(profile))
        print(f"An epoch of {calls} calls, {epoch_text(profile, calls)}")
    else:
        _train(settings, images, host, calls)


def _print_data(settings: TrainSettings, images: PictureDataset) -> None:
    if not isinstance(images, ShapePictures):
        print("Files already downloaded and verified")
    print("Data:", images.description, flush=True)
    if isinstance(images, ShapePictures) and settings.dataset == AUTO and not settings.profile_only:
        print(
            f"Notice: this is not CIFAR-10, whose files are not in {settings.data_folder!r} (--data-folder names "
            "another folder, --download fetches them). Losses and accuracies do not compare with CIFAR-10's."
        )


def _train(settings: TrainSettings, images: PictureDataset, host: HostWork | None, calls: int) -> None:
    options = training_options(settings)
    if settings.seed is not None:
        torch.manual_seed(settings.seed)
    module = training_module(settings)
    training_model = poptorch.trainingModel(module, options, optimizer=make_optimiser(settings, module))
    product = " x ".join(str(factor.value) for factor in settings.factors)
    shorter = "" if settings.limit_batches else "; --limit-batches N makes it N calls"
    print(
        f"Training: {counted(calls, 'call')} of {settings.images_per_call} images an epoch ({product}), "
        f"{counted(settings.stages, 'stage')}{shorter}",
        flush=True,
    )
    with loading(settings, options, images) as loader:
        for epoch in range(1, settings.epochs + 1):
            seconds = train_epoch(training_model, loader, epoch)
            first = epoch == 1
            if first:  # its first call has compiled the model
                profile = _profile(training_model, host)
            measured = f"measured here: {seconds_text(seconds)} ({engine.measured_on()}"
            print(
                f"[Epoch {epoch:02d}] {measured}{', compilation included' if first else ''})"
                f"{_modelled(profile, calls, first)}",
                flush=True,
            )


def train_epoch(training_model: poptorch.PoplarExecutor, loader: poptorch.DataLoader, epoch: int) -> float:
    """Train for one epoch, print its mean loss and accuracy, and return the seconds it took."""
    name, calls, latest = f"[Epoch {epoch:02d}]", len(loader), ""
    losses = accuracies = 0.0
    start = time.perf_counter()
    # disable=None: there is a bar only where there is a terminal to redraw it.
    bar = tqdm(loader, desc=name, total=calls, disable=None)
    no_bar = bar.disable  # asked now: at its end every bar calls itself disabled
    for images, labels in bar:
        loss, _, accuracy = training_model(images, labels)
        # One result from each replica.
        call_loss, call_accuracy = loss.float().mean().item(), accuracy.float().mean().item()
        losses, accuracies = losses + call_loss, accuracies + call_accuracy
        latest = f"loss={call_loss:.3g}, acc={call_accuracy:.3g}"
        bar.set_postfix_str(latest)
    seconds = time.perf_counter() - start
    if no_bar:
        print(_finished_bar(name, calls, seconds, latest), file=sys.stderr, flush=True)
    print(f"{name} loss: {losses / calls:.3f}, acc: {accuracies / calls:.1f}", flush=True)
    return seconds


def _finished_bar(name: str, calls: int, seconds: float, postfix: str) -> str:
    """Return the last state of a bar, for a file or a pipe, where its earlier states would only be in the way."""
    plain = "utf" not in (sys.stderr.encoding or "").lower()
    return tqdm.format_meter(calls, calls, seconds, prefix=name, ascii=plain, postfix=postfix)


def _profile(training_model: poptorch.PoplarExecutor, host: HostWork | None) -> Profile | str | None:
    """Return the modelled profile, or why there is none; ``None`` where there is no IPU Model."""
    try:
        return engine.profile(training_model, host)
    except poptorch.Error as problem:
        return str(problem)  # the training itself goes on


def _modelled(profile: Profile | str | None, calls: int, first: bool) -> str:
    if not profile:
        return ""
    if isinstance(profile, str):
        return f"; not modelled: {profile}"
    minutes, seconds = divmod(round(profile.compilation_seconds), 60)
    compilation = f", and {minutes} min {seconds} s for the compilation"
    return f"; {epoch_text(profile, calls)}{compilation if first and engine.may_run(profile) else ''}"


def epoch_text(profile: Profile, calls: int) -> str:
    """Return the modelled time of an epoch in words, or that the program does not fit."""
    verdict, memory = engine.memory_verdict(profile), profile.memory
    tile = f"{memory.max_tile_bytes / KIB:.0f} KiB on the fullest tile, limit {memory.tile_bytes / KIB:.0f} KiB"
    if not engine.may_run(profile):
        return f"modelled on IPU: {verdict} ({tile})"
    doubt = "" if verdict == "fits" else f" (memory is {verdict}: {tile})"
    return f"modelled on IPU: {seconds_text(calls * profile.call_seconds)}{doubt}"


def seconds_text(seconds: float) -> str:
    """Return seconds with one digit after the point, below one second with two."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
