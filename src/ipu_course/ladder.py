"""The ladder: the published steps of the workshop's program, modelled beside their published results.

The workshop trained ResNet-101 on CIFAR-10 over two IPUs and changed one setting at a time. Each setting is a step
of the ladder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import mean
from typing import TYPE_CHECKING, Any, Sequence

import torch

from ipu_course import engine
from ipu_course.data_folder import from_json
from ipu_course.programs.train.settings import TrainSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ipu_course.engine import HostWork, ModelledModule, Profile

__all__ = [
    "FittedHost",
    "ModelledStep",
    "PublishedLadder",
    "PublishedStep",
    "climb",
    "epoch_seconds",
    "host",
    "host_of",
    "ladder_figure",
    "micro_batch",
    "published",
    "published_ladder",
    "show_steps",
]

PUBLISHED_FILE = "published_day03.json"
MICRO_BATCH, SIDE = 64, 64
DOES_NOT_FIT = "does not fit"
MODELLED = "modelled (host work fitted)"


@dataclass(frozen=True)
class PublishedStep:
    """One step of the ladder: its settings, and what the workshop measured on hardware.

    A step that does not fit into memory has no times. ``seconds_per_call`` is the mean over the epochs from the
    second on, because the first one includes the compilation.
    """

    name: str
    settings: TrainSettings
    fits: bool
    result: str
    source: str
    calls_per_epoch: int | None = None
    seconds_per_call: float | None = None

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds of an epoch, derived from the published time of a call."""
        if self.calls_per_epoch is None or self.seconds_per_call is None:
            return None
        return self.calls_per_epoch * self.seconds_per_call


@dataclass(frozen=True)
class FittedHost:
    """The host work of the workshop's program in seconds, fitted on the published steps ``fitted_on``."""

    seconds_per_image: float
    seconds_per_eight_bit_image: float
    seconds_per_call: float
    source: str
    fitted_on: tuple[str, ...]


@dataclass(frozen=True)
class PublishedLadder:
    """All published steps in their order, the machine they ran on, and its fitted host."""

    title: str
    source: str
    machine: str
    training_images: int
    steps: tuple[PublishedStep, ...]
    host: FittedHost


@dataclass(frozen=True)
class ModelledStep:
    """One step of the ladder with its modelled profile."""

    published: PublishedStep
    profile: Profile
    calls_per_epoch: int

    @property
    def epoch_seconds(self) -> float | None:
        """Modelled seconds of an epoch, or ``None`` where the program does not fit."""
        return self.calls_per_epoch * self.profile.call_seconds if engine.may_run(self.profile) else None

    @property
    def fitted(self) -> bool:
        """Whether the host work in the modelled epoch was fitted on this very step."""
        return self.epoch_seconds is not None and self.published.name in published_ladder().host.fitted_on

    @property
    def error(self) -> float | None:
        """How far the modelled epoch is from the one that follows from the published rate: 0.05 means 5 % too long."""
        ours, theirs = self.epoch_seconds, self.published.epoch_seconds
        return None if ours is None or theirs is None else ours / theirs - 1


@lru_cache(maxsize=1)
def published_ladder() -> PublishedLadder:
    """Read the published steps from the course's data folder.

    Raises ``DataError`` when the file is missing or damaged.
    """
    return from_json(PUBLISHED_FILE, _ladder)


def published(step: str) -> PublishedStep:
    """Return the published result of one step, by its name. Raises ``ValueError`` for an unknown step."""
    steps = {each.name: each for each in published_ladder().steps}
    if step not in steps:
        raise ValueError(f"the ladder has no step {step!r}; it has {', '.join(map(repr, steps))}")
    return steps[step]


def micro_batch(dtype: torch.dtype, size: int = MICRO_BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images [size, 3, 64, 64] of ``dtype`` and labels [size], all zeros: a profile needs only shapes."""
    return torch.zeros(size, 3, SIDE, SIDE, dtype=dtype), torch.zeros(size, dtype=torch.int64)


def host(eight_bit_io: bool = False, asynchronous: bool = False, workers: int = 0) -> HostWork:
    """Return the host work of the workshop's program, which is fitted on its published epochs."""
    return host_of(TrainSettings(eight_bit_io=eight_bit_io, async_dataloader=asynchronous, num_workers=workers))


def host_of(settings: TrainSettings) -> HostWork:
    """Return the host work of the training program with these ``settings`` on the workshop's host."""
    fitted = published_ladder().host
    return engine.host_work(
        fitted.seconds_per_eight_bit_image if settings.eight_bit_io else fitted.seconds_per_image,
        fitted.seconds_per_call,
        settings.async_dataloader,
        settings.num_workers,
        fitted.source + _assumptions(settings),
    )


@engine.needs_the_model
def epoch_seconds(profile: Profile | None) -> float | None:
    """Return the modelled seconds of an epoch over CIFAR-10's 50,000 training images, without incomplete calls.

    Returns ``None`` without a profile, and where the program does not fit.
    """
    if profile is None or not engine.may_run(profile):
        return None
    return published_ladder().training_images // profile.samples_per_call * profile.call_seconds


def climb(names: Sequence[str] | None = None) -> tuple[ModelledStep, ...]:
    """Profile the steps with these ``names``, by default all of them.

    Raises ``CourseError`` where there is no IPU Model.
    """
    from ipu_course.programs.train.model import captured  # imports torchvision and poptorch

    ladder = published_ladder()
    programs: dict[TrainSettings, ModelledModule] = {}  # steps that differ only in loops or host share one capture
    climbed = []
    for step in ladder.steps:
        if names is not None and step.name not in names:
            continue
        settings = step.settings
        graph = replace(settings, gradient_accumulation=3, device_iterations=1, async_dataloader=False)
        if graph not in programs:
            programs[graph] = captured(graph)
        profile = programs[graph].profile(
            host_of(settings),
            gradient_accumulation=settings.gradient_accumulation,
            device_iterations=settings.device_iterations,
        )
        climbed.append(ModelledStep(step, profile, settings.calls_per_epoch(ladder.training_images)))
    return tuple(climbed)


def ladder_figure(
    names: Sequence[str],
    modelled: Sequence[float | None],
    derived: Sequence[float | None],
    reference: str = "published rates",
) -> Figure:
    """Draw the seconds per epoch of each step, modelled and derived from the rates of ``reference``.

    ``None`` means that a step does not fit.
    """
    from ipu_course.figures.bars import bars_figure  # imports matplotlib

    return bars_figure(
        names,
        {MODELLED: modelled, f"derived from {reference}": derived},
        "seconds per epoch",
        "ResNet-101 on CIFAR-10 over two IPUs: one change at a time",
        form="{:.1f}",
        missing="does not fit into memory",
    )


def show_steps(steps: Sequence[ModelledStep], reference: str = "[1]") -> None:
    """Show the seconds per epoch of these steps, modelled beside derived from ``reference``: a figure and a table."""
    from ipu_course import show  # imports matplotlib and IPython

    names = [step.published.name for step in steps]
    modelled = [step.epoch_seconds for step in steps]
    derived = [step.published.epoch_seconds for step in steps]
    drawn = ladder_figure(names, modelled, derived, reference)
    show.figure(drawn, _takeaway(steps), _description(steps, reference))
    show.table([_row(step, reference) for step in steps], index="step")
    ladder = published_ladder()
    derivation = "calls per epoch times the published time of a call"
    print(f"Derived from {reference}: {derivation}; {ladder.source}; {ladder.machine}.")
    print(f"Host work in the modelled times: {ladder.host.source}.")


def _takeaway(steps: Sequence[ModelledStep]) -> str:
    """Say what the last step changed."""
    last = steps[-1]
    before = steps[-2].epoch_seconds if len(steps) > 1 else None
    if last.epoch_seconds is None:
        return f"The step {last.published.name!r} does not fit into memory."
    now = f"With {last.published.name}, "
    if before is None:
        return f"{now}the program fits into memory, and an epoch takes {last.epoch_seconds:.1f} s, {MODELLED}."
    return f"{now}an epoch takes {last.epoch_seconds:.1f} s instead of {before:.1f} s, {MODELLED}."


def _description(steps: Sequence[ModelledStep], reference: str) -> str:
    parts = [
        f"{step.published.name}: {_seconds(step.epoch_seconds)} modelled, {_seconds(step.published.epoch_seconds)} "
        + ("published" if step.published.epoch_seconds is None else "derived")
        for step in steps
    ]
    return f"Two bars for each step: seconds per epoch, {MODELLED} and derived from {reference}. {'; '.join(parts)}."


def _row(step: ModelledStep, reference: str) -> dict[str, object]:
    derived = step.published.epoch_seconds
    return {
        "step": step.published.name,
        "modelled": _seconds(step.epoch_seconds) + (", host work fitted" if step.fitted else ""),
        f"derived from {reference}": f"{DOES_NOT_FIT} (published)" if derived is None else _seconds(derived),
        "difference": "-" if step.error is None else f"{step.error:+.1%}",
        "limited by (modelled)": step.profile.limited_by if engine.may_run(step.profile) else "memory",
    }


def _seconds(value: float | None) -> str:
    return DOES_NOT_FIT if value is None else f"{value:.1f} s"


def _assumptions(settings: TrainSettings) -> str:
    """What the fitted host assumes for settings that the workshop did not publish."""
    assumed = []
    if settings.image_size != SIDE:
        assumed.append(f"{settings.image_size} x {settings.image_size} images cost as much as 64 x 64")
    if settings.image_bits == 32:
        assumed.append("32-bit images cost as much as 16-bit ones")
    if settings.num_workers:
        assumed.append("no published run had loader workers")
    return f"; assumed: {', '.join(assumed)}" if assumed else ""


def _ladder(data: dict[str, Any]) -> PublishedLadder:
    host = data["host_work"]
    return PublishedLadder(
        title=data["title"],
        source=data["source"],
        machine=data["machine"],
        training_images=data["training_images"],
        steps=tuple(_step(entry) for entry in data["steps"]),
        host=FittedHost(
            seconds_per_image=host["seconds_per_image"],
            seconds_per_eight_bit_image=host["seconds_per_eight_bit_image"],
            seconds_per_call=host["seconds_per_call"],
            source=host["source"],
            fitted_on=tuple(host["fitted_on"]),
        ),
    )


def _step(entry: dict[str, Any]) -> PublishedStep:
    return PublishedStep(
        name=entry["name"],
        settings=replace(TrainSettings(), **entry["options"]),
        fits=entry["fits"],
        result=entry["result"],
        source=entry["source"],
        calls_per_epoch=entry.get("calls_per_epoch"),
        seconds_per_call=_seconds_per_call(entry),
    )


def _seconds_per_call(entry: dict[str, Any]) -> float | None:
    """Return the mean over epochs; the file has calls a second or seconds a call, as the progress bars printed."""
    if "seconds_per_call" in entry:
        return float(mean(entry["seconds_per_call"]))
    if "calls_per_second" in entry:
        return 1 / float(mean(entry["calls_per_second"]))
    return None
