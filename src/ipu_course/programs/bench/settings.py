"""The settings of one benchmark and the arithmetic of its calls. Knows neither torch nor PopTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipu_course.errors import SettingsError

PRECISIONS = ("16.16", "16.32", "32.32")
SCHEDULES = ("grouped", "interleaved", "sequential")
OPTIMISERS = ("momentum", "rmsprop")
NORMALISATIONS = ("batch", "group")
DATA = ("imagenet", "synthetic", "generated")
NO_SPLIT = "none"


@dataclass(frozen=True)
class Settings:
    """One benchmark: a model, its options and the machine.

    ``precision`` is "<bits of the computation>.<bits of the weights>". ``pipeline_splits`` are names of the
    page (`b1/2/relu`, the last layer of a stage) or of modules (`layer3.4`, the first layer of the next one).
    ``shards`` are the IPUs of one replica, ``replicas`` those of all ``instances`` (host processes) together.
    ``gradient_accumulation`` counts in training only, ``device_iterations`` in both. ``repeat`` is the number of
    steps, one throughput value each; a step is one call. ``image_size`` is in pixels.
    """

    model: str
    training: bool = True
    machine: str = "M2000"
    batch_size: int = 1
    image_size: int = 224
    group_dim: int = 1
    expand_ratio: int = 6
    precision: str = "16.16"
    normalisation: str = "batch"
    norm_groups: int = 32
    shards: int = 1
    pipeline: bool = False
    pipeline_splits: tuple[str, ...] = ()
    schedule: str = "grouped"
    replicas: int = 1
    instances: int = 1
    gradient_accumulation: int = 1
    device_iterations: int = 1
    recomputation: bool = False
    half_partials: bool = False
    stable_norm: bool = False
    available_memory_proportion: float | None = None
    eight_bit_io: bool = False
    variable_offloading: bool = False
    optimiser: str = "momentum"
    momentum: float = 0.9
    label_smoothing: float = 0.0
    data: str = "imagenet"
    repeat: int = 10

    @property
    def ipus(self) -> int:
        """IPUs of all replicas."""
        return self.shards * self.replicas

    @property
    def replicas_per_instance(self) -> int:
        """Replicas of one host process."""
        return self.replicas // self.instances

    @property
    def images_per_batch(self) -> int:
        """Images that the IPUs take at once: a micro-batch of each replica."""
        return self.batch_size * self.replicas

    @property
    def global_batch(self) -> int:
        """Images of one weight update."""
        return self.images_per_batch * (self.gradient_accumulation if self.training else 1)

    @property
    def images_per_step(self) -> int:
        """Images of one call, over all instances."""
        return self.global_batch * self.device_iterations

    @property
    def is_pipelined(self) -> bool:
        """Whether the shards work at the same time."""
        return self.shards > 1 and self.pipeline and self.schedule != "sequential"

    @property
    def least_accumulation(self) -> int:
        """The smallest gradient accumulation that fills the pipeline."""
        return 2 * self.shards - 1 if self.is_pipelined else 1

    @property
    def least_iterations(self) -> int:
        """The fewest device iterations that a call may have."""
        return self.shards if self.is_pipelined and not self.training else 1

    @property
    def image_bytes(self) -> int:
        """Bytes of one image on its way to the IPU: 3 x size x size numbers."""
        bits = 8 if self.eight_bit_io else int(self.precision.split(".")[0])
        return 3 * self.image_size**2 * bits // 8


def check_settings(settings: Settings) -> None:
    """Raise ``SettingsError`` when numbers or options do not go together."""
    _check_values(settings)
    _check_shards(settings)
    _check_replicas(settings)
    _check_loops(settings)


def _check_values(settings: Settings) -> None:
    for name in ("batch_size", "image_size", "group_dim", "expand_ratio", "norm_groups", "shards", "replicas",
                 "instances", "gradient_accumulation", "device_iterations", "repeat"):  # fmt: skip
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingsError(f"{_option(name)} {value}: it must be a whole number from 1 on")
    for name, choices in (("precision", PRECISIONS), ("schedule", SCHEDULES), ("optimiser", OPTIMISERS),
                          ("normalisation", NORMALISATIONS), ("data", DATA)):  # fmt: skip
        value = getattr(settings, name)
        if value not in choices:
            raise SettingsError(f"{_option(name)} {value}: it must be one of {', '.join(choices)}")
    proportion = settings.available_memory_proportion
    if proportion is not None and not 0.0 < proportion <= 1.0:
        raise SettingsError(f"--available-memory-proportion {proportion}: it must be above 0 and at most 1")
    for name in ("momentum", "label_smoothing"):
        value = getattr(settings, name)
        if not (math.isfinite(value) and 0.0 <= value < 1.0):
            raise SettingsError(f"{_option(name)} {value}: it must be from 0 to below 1")


def _option(name: str) -> str:
    return "--pipeline-schedule" if name == "schedule" else "--" + name.replace("_", "-")


def _check_shards(settings: Settings) -> None:
    stages = len(settings.pipeline_splits) + 1
    if stages != settings.shards:
        splits = " ".join(settings.pipeline_splits) or NO_SPLIT
        fewer = f"--pipeline-splits {NO_SPLIT}" if settings.shards == 1 else _count(settings.shards - 1, "split")
        raise SettingsError(
            f"--shards {settings.shards} and --pipeline-splits {splits} do not agree: {_count(stages - 1, 'split')} "
            f"make {_count(stages, 'shard')}; use --shards {stages}, or {fewer}"
        )


def _check_replicas(settings: Settings) -> None:
    if settings.replicas % settings.instances:
        known = [count for count in range(1, settings.replicas + 1) if settings.replicas % count == 0]
        near = min(known, key=lambda count: abs(count - settings.instances))
        raise SettingsError(
            f"--replicas {settings.replicas} cannot be shared evenly by --instances {settings.instances}; the nearest "
            f"that works is --instances {near}"
        )


def _check_loops(settings: Settings) -> None:
    least = settings.least_accumulation
    if settings.training and settings.gradient_accumulation < least:
        raise SettingsError(
            f"--gradient-accumulation {settings.gradient_accumulation} cannot fill the pipeline: training --shards "
            f"{settings.shards} with --pipeline needs at least 2 x {settings.shards} - 1 = {least} micro-batches per "
            f"update; use --gradient-accumulation {least} or more, or --pipeline off"
        )
    if settings.device_iterations < settings.least_iterations:
        raise SettingsError(
            f"--device-iterations {settings.device_iterations} cannot fill the pipeline: inference with --shards "
            f"{settings.shards} and --pipeline needs at least one batch for each; use --device-iterations "
            f"{settings.least_iterations} or more, or --pipeline off"
        )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
