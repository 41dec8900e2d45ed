"""The hands-on's published results and the host work fitted on them, read from the course's data folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import mean
from typing import Any

from ipu_course.data_folder import from_json
from ipu_course.programs.train.settings import Settings

PUBLISHED_FILE = "published_day03.json"


@dataclass(frozen=True)
class PublishedStep:
    """One step of the hands-on: its settings, and what was measured on hardware.

    Where the program does not fit into memory there are no times. ``seconds_per_call`` is the mean over the
    epochs from the second on; the first one includes the compilation.
    """

    name: str
    settings: Settings
    fits: bool
    result: str
    source: str
    calls_per_epoch: int | None = None
    seconds_per_call: float | None = None

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds of an epoch."""
        if self.calls_per_epoch is None or self.seconds_per_call is None:
            return None
        return self.calls_per_epoch * self.seconds_per_call


@dataclass(frozen=True)
class FittedHost:
    """What the hands-on's program costs its host, in seconds; fitted on the published steps ``fitted_on``."""

    seconds_per_image: float
    seconds_per_eight_bit_image: float
    seconds_per_call: float
    source: str
    fitted_on: tuple[str, ...]


@dataclass(frozen=True)
class PublishedLadder:
    """The whole sequence of the hands-on."""

    title: str
    source: str
    machine: str
    training_images: int
    steps: tuple[PublishedStep, ...]
    host: FittedHost


@lru_cache(maxsize=1)
def published_ladder() -> PublishedLadder:
    """The hands-on's steps with their published results.

    Raises ``DataError`` when the file is missing or damaged.
    """
    return from_json(PUBLISHED_FILE, _ladder)


def _ladder(data: dict[str, Any]) -> PublishedLadder:
    return PublishedLadder(
        title=data["title"],
        source=data["source"],
        machine=data["machine"],
        training_images=data["training_images"],
        steps=tuple(_step(entry) for entry in data["steps"]),
        host=_host(data["host_work"]),
    )


def _step(entry: dict[str, Any]) -> PublishedStep:
    return PublishedStep(
        name=entry["name"],
        settings=replace(Settings(), **entry["options"]),
        fits=entry["fits"],
        result=entry["result"],
        source=entry["source"],
        calls_per_epoch=entry.get("calls_per_epoch"),
        seconds_per_call=_seconds_per_call(entry),
    )


def _seconds_per_call(entry: dict[str, Any]) -> float | None:
    """The mean over epochs; the progress bars show calls a second, or seconds a call when those are more."""
    if "seconds_per_call" in entry:
        return float(mean(entry["seconds_per_call"]))
    if "calls_per_second" in entry:
        return 1 / float(mean(entry["calls_per_second"]))
    return None


def _host(entry: dict[str, Any]) -> FittedHost:
    return FittedHost(
        seconds_per_image=entry["seconds_per_image"],
        seconds_per_eight_bit_image=entry["seconds_per_eight_bit_image"],
        seconds_per_call=entry["seconds_per_call"],
        source=entry["source"],
        fitted_on=tuple(entry["fitted_on"]),
    )
