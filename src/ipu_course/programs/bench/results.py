"""The modelled results of one benchmark, of a sweep over batch sizes, and of the whole page."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Callable, Iterable, Iterator, Sequence, TypeVar

from ipu_course import engine
from ipu_course.errors import SettingsError
from ipu_course.programs.bench.layers import stage_starts
from ipu_course.programs.bench.page import Configuration, all_configurations, model_data
from ipu_course.programs.bench.settings import BenchSettings, check_settings

if TYPE_CHECKING:
    from ipu_course.engine import Profile

KIB = 1024
# All channels of an EfficientNet are multiples of 8; 16 divides those of all blocks but one of B4's.
GROUP_DIMS = (1, 2, 4, 8, 16)
Item = TypeVar("Item")
Watch = Callable[[Sequence[Item]], Iterable[Item]]


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
    settings: BenchSettings
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


def modelled_result(of: BenchSettings | Configuration, name: str = "") -> Result | None:
    """Model the result of settings, or of a configuration of the page; ``None`` without an IPU Model.

    Raises ``CourseError`` for settings that do not go together or that the model refuses.
    """
    settings, title = (of, name or of.model) if isinstance(of, BenchSettings) else (of.settings, name or of.name)
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


def one_batch(settings: BenchSettings) -> BenchSettings:
    """Return the settings of a call with as few batches as possible: one, or one for each stage of a pipeline."""
    return replace(settings, device_iterations=settings.least_iterations)


def check(settings: BenchSettings) -> None:
    """Raise ``CourseError`` for settings that do not go together, with the model or with the machine."""
    stage_starts(settings)
    check_settings(settings)
    _check_blocks(settings)
    try:
        ipus = engine.machine_ipus(settings.machine)
    except ValueError as problem:
        raise SettingsError(f"--machine {settings.machine}: {problem}") from problem
    if settings.ipus > ipus:
        raise SettingsError(
            f"--machine {settings.machine} has {ipus} IPUs, and --replicas {settings.replicas} x --shards "
            f"{settings.shards} need {settings.ipus}; {_smaller(settings, ipus)}"
        )


def _check_blocks(settings: BenchSettings) -> None:
    if model_data(settings.model)["family"] != "efficientnet":
        for name in ("group_dim", "expand_ratio"):
            if getattr(settings, name) != getattr(BenchSettings, name):
                raise SettingsError(
                    f"--{name.replace('_', '-')} is for EfficientNets; leave it out for {settings.model}"
                )
    if settings.group_dim not in GROUP_DIMS:
        near = min(GROUP_DIMS, key=lambda size: abs(size - settings.group_dim))
        raise SettingsError(
            f"--group-dim {settings.group_dim}: the channels of {settings.model} do not divide into groups of that "
            f"size; the nearest that works is --group-dim {near}"
        )


def _smaller(settings: BenchSettings, ipus: int) -> str:
    replicas = ipus // settings.shards
    if replicas:
        return f"use --replicas {replicas}, or a larger machine such as POD16, POD64 or POD256"
    return "use fewer shards, or a larger machine such as POD16, POD64 or POD256"


def sweep(
    of: BenchSettings | Configuration, batch_sizes: Sequence[int] | None = None, name: str = ""
) -> tuple[Result, ...]:
    """One result for each batch size; the page's, or those around the settings' own, by default.

    Nothing without an IPU Model. Raises ``CourseError`` as ``modelled_result`` does.
    """
    return tuple(_modelled(sweep_points(of, batch_sizes, name)))


def sweep_points(
    of: BenchSettings | Configuration, batch_sizes: Sequence[int] | None = None, name: str = ""
) -> list[tuple[str, BenchSettings]]:
    """What ``sweep`` models: names and settings."""
    if isinstance(of, BenchSettings):
        sizes = batch_sizes or around(of.batch_size)
        return [(name or of.model, replace(of, batch_size=size)) for size in sizes]
    sizes = batch_sizes or of.batch_sizes or around(of.settings.batch_size)
    return [(name or of.name, replace(of.settings, batch_size=size)) for size in sizes]


def around(batch_size: int) -> tuple[int, ...]:
    """Batch sizes from a quarter to twice of one."""
    return tuple(sorted({max(1, batch_size // 4), max(1, batch_size // 2), batch_size, 2 * batch_size}))


def page_points() -> list[tuple[str, BenchSettings]]:
    """Every command line of the page with every batch size it asks for: names and settings."""
    return [
        point for each in all_configurations() for point in sweep_points(each, each.batch_sizes or None)
        if each.batch_sizes or point[1] == each.settings
    ]  # fmt: skip


def page_results(watch: Watch[tuple[str, BenchSettings]] = lambda points: points) -> tuple[Result, ...]:
    """Model the whole page; ``watch`` follows the work, as tqdm does. Empty without an IPU Model."""
    return tuple(_modelled(watch(page_points())))


def _modelled(points: Iterable[tuple[str, BenchSettings]]) -> Iterator[Result]:
    if not engine.is_available():
        return
    for name, settings in points:
        result = modelled_result(settings, name)
        if result is not None:
            yield result
