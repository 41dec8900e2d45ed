"""The modelled result of one benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ipu_course import engine
from ipu_course.errors import SettingsError
from ipu_course.programs.bench.layers import stage_starts
from ipu_course.programs.bench.settings import Settings, check_settings

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.programs.bench.page import Configuration

KIB = 1024


@dataclass(frozen=True)
class Result:
    """What the IPU Model says of one benchmark; all figures are modelled.

    ``verdict`` is "fits", "too close to call" or "does not fit": what does not fit has rates all the same, those
    it would have. ``latency_seconds`` (inference only) is the time of a call of one batch, micro-batch x
    replicas, from the call to its result; ``latency_device_seconds`` are the device's part of it, the rest is the
    call's on the host. ``start_seconds`` is what the first step takes longer: code and
    weights go to the IPUs. Compilation is no part of it.
    """

    name: str
    settings: Settings
    profile: Profile = field(repr=False)
    verdict: str
    start_seconds: float
    latency_seconds: float | None = None
    latency_device_seconds: float | None = None
    remedies: tuple[str, ...] = ()

    @property
    def images_per_second(self) -> float:
        """The average of all steps but the first one."""
        rates = self.step_rates[1:] or self.step_rates
        return sum(rates) / len(rates)

    @property
    def step_rates(self) -> tuple[float, ...]:
        """Images a second of each step."""
        seconds = self.profile.call_seconds
        first = self.settings.images_per_step / (self.start_seconds + seconds)
        return (first, *[self.settings.images_per_step / seconds] * (self.settings.repeat - 1))

    @property
    def rate_band(self) -> tuple[float, float]:
        """By which factors the hardware's rate may differ: (0.9, 1.1) is +-10 %."""
        seconds = self.profile.error_band
        return 1 / seconds.high, 1 / seconds.low

    @property
    def is_sure_to_fit(self) -> bool:
        """Whether it fits and is not too close to call."""
        return self.verdict == "fits"

    @property
    def tile_kib(self) -> float:
        """KiB on the fullest tile."""
        return self.profile.memory.max_tile_bytes / KIB

    @property
    def tile_limit_kib(self) -> float:
        """KiB of a tile."""
        return self.profile.memory.tile_bytes / KIB

    @property
    def loader_images_per_second(self) -> float:
        """Images a second that the host has to load so that the IPUs never wait; 0 with synthetic data."""
        return 0.0 if self.settings.data == "synthetic" else self.images_per_second

    @property
    def loader_bytes_per_second(self) -> float:
        """Bytes of images a second over the host links."""
        return self.loader_images_per_second * self.settings.image_bytes

    @property
    def teraflops_per_ipu(self) -> float:
        """TFLOP a second and IPU that the rate amounts to, in 10**12."""
        each = self.profile.flops_per_call / self.profile.samples_per_call
        return each * self.images_per_second / self.settings.ipus / 1e12


def modelled_result(of: Settings | Configuration, name: str = "") -> Result | None:
    """The modelled result of settings, or of a configuration of the page; ``None`` without an IPU Model.

    Raises ``CourseError`` for settings that do not go together or that the model refuses.
    """
    settings, title = (of, name or of.model) if isinstance(of, Settings) else (of.settings, name or of.name)
    check(settings)
    if not engine.is_available():
        return None
    from ipu_course.programs.bench.captures import captured, profile_of  # imports torch and poptorch

    profile = profile_of(settings)
    verdict = engine.memory_verdict(profile)
    single = None if settings.training else profile_of(one_batch(settings))
    return Result(
        name=title,
        settings=settings,
        profile=profile,
        verdict=verdict,
        start_seconds=engine.start_seconds(profile),
        latency_seconds=single.call_seconds if single else None,
        latency_device_seconds=single.device_seconds_per_call if single else None,
        remedies=() if verdict == "fits" else captured(settings).memory_remedies(profile),
    )


def one_batch(settings: Settings) -> Settings:
    """The settings of a call of as few batches as possible: one, or one for each stage of a pipeline."""
    return replace(settings, device_iterations=settings.least_iterations)


def check(settings: Settings) -> None:
    """Raise ``CourseError`` for settings that do not go together, with the model or with the machine."""
    stage_starts(settings)
    check_settings(settings)
    try:
        ipus = engine.machine_ipus(settings.machine)
    except ValueError as problem:
        raise SettingsError(f"--machine {settings.machine}: {problem}") from problem
    if settings.ipus > ipus:
        raise SettingsError(
            f"--machine {settings.machine} has {ipus} IPUs, and --replicas {settings.replicas} x --shards "
            f"{settings.shards} need {settings.ipus}; {_smaller(settings, ipus)}"
        )


def _smaller(settings: Settings, ipus: int) -> str:
    replicas = ipus // settings.shards
    if replicas:
        return f"use --replicas {replicas}, or a larger machine such as POD16, POD64 or POD256"
    return "use fewer shards, or a larger machine such as POD16, POD64 or POD256"
