"""The settings of one benchmark, as options, and the arithmetic of its calls. It needs no torch."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields
from typing import Any

from ipu_course.errors import SettingsError
from ipu_course.programs.calls import check_accumulation, least_accumulation
from ipu_course.programs.options import NO_SPLIT, PRECISIONS, check_values, count, on_off, option
from ipu_course.programs.text import counted

RUN_STEPS, RUN_BATCH = 3, 2  # of a small run on this machine


def _choice(default: str, help: str, *choices: str, name: str = "") -> Any:
    return option(default, help, *([name] if name else []), type=str.lower, choices=choices)


def _switch(help: str, *names: str) -> Any:
    return option(False, help, *names, type=on_off, nargs="?", const=True, metavar="on|off")


def _share(default: float | None, help: str) -> Any:
    return option(default, help, type=float, metavar="SHARE")


@dataclass(frozen=True)
class BenchSettings:
    """One benchmark: a model, its options and the machine.

    ``precision`` is "<bits of the computation>.<bits of the weights>". ``pipeline_splits`` are names of the
    page (`b1/2/relu`, the last layer of a stage) or of modules (`layer3.4`, the first layer of the next one).
    ``shards`` are the IPUs of one replica, ``replicas`` those of all ``instances`` (host processes) together.
    ``gradient_accumulation`` counts in training only, ``device_iterations`` in both. ``repeat`` is the number of
    steps, one throughput value each; a step is one call. ``image_size`` is in pixels.
    """

    model: str
    training: bool = True
    machine: str = option("M2000", "M2000, POD16, POD64, Bow-POD16, ... (default: M2000)", metavar="NAME")
    batch_size: int = count(1, "micro-batch size")
    image_size: int = count(224, "pixels in a row and in a column")
    gradient_accumulation: int = count(
        1, "micro-batches per weight update", "--gradient-accumulation", "--gradient-accumulation-count"
    )
    device_iterations: int = count(1, "weight updates, or batches of inference, per step")
    replicas: int = count(1, "copies of the model, over all instances", "--replicas", "--num-replicas")
    instances: int = count(1, "host processes", "--instances", "--num-instances")
    shards: int = count(1, "IPUs of one replica", "--shards", "--ipus-per-replica")
    pipeline: bool = _switch("let the shards work at the same time")
    pipeline_splits: tuple[str, ...] = option(
        (),
        "last layers of stages in the page's names (b1/2/relu, block2c), or modules that begin one (layer3.4); "
        f"{NO_SPLIT}: one IPU",
        nargs="+",
        metavar="LAYER",
    )
    schedule: str = _choice(
        "grouped", "order of the pipeline's work", "grouped", "interleaved", "sequential", name="--pipeline-schedule"
    )
    precision: str = _choice("16.16", "bits of the computation, then of the weights", *PRECISIONS)
    half_partials: bool = _switch(
        "sum inside matrix products in half precision", "--half-partials", "--enable-half-partials"
    )
    recomputation: bool = _switch(
        "compute activations again for the backward pass", "--recomputation", "--enable-recomputation"
    )
    variable_offloading: bool = _switch("keep the optimiser's state in streaming memory")
    available_memory_proportion: float | None = _share(None, "share of a tile for a convolution's temporary data")
    eight_bit_io: bool = _switch("send images as uint8, and normalise them on the IPU")
    data: str = _choice(
        "imagenet",
        "loaded by the host, made on the IPU, or random images from the host",
        "imagenet",
        "synthetic",
        "generated",
    )
    normalisation: str = _choice("batch", "kind of normalisation", "batch", "group")
    norm_groups: int = count(32, "groups of group normalisation", "--norm-groups", "--groups")
    stable_norm: bool = _switch("use the slower, more accurate formula of normalisation")
    optimiser: str = _choice("momentum", "optimiser", "momentum", "rmsprop")
    momentum: float = _share(0.9, "momentum of the optimiser")
    label_smoothing: float = _share(0.0, "label smoothing of the loss")
    group_dim: int = count(1, "EfficientNet: channels in a group of its middle convolutions; 1: depthwise")
    expand_ratio: int = count(6, "EfficientNet: how much wider a block's middle is than its ends")
    repeat: int = count(10, "steps, one throughput value each")

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
        return least_accumulation(self.shards) if self.is_pipelined else 1

    @property
    def least_iterations(self) -> int:
        """The fewest device iterations that a call may have."""
        return self.shards if self.is_pipelined and not self.training else 1

    @property
    def image_bytes(self) -> int:
        """Bytes of one image on its way to the IPU: 3 x size x size numbers."""
        bits = 8 if self.eight_bit_io else int(self.precision.split(".")[0])
        return 3 * self.image_size**2 * bits // 8


def check_settings(settings: BenchSettings) -> None:
    """Raise ``SettingsError`` when numbers or options do not go together."""
    check_values(settings)
    _check_shares(settings)
    _check_shards(settings)
    _check_replicas(settings)
    _check_loops(settings)


def _check_shares(settings: BenchSettings) -> None:
    proportion = settings.available_memory_proportion
    if proportion is not None and not 0.0 < proportion <= 1.0:
        raise SettingsError(f"--available-memory-proportion {proportion}: it must be above 0 and at most 1")
    for name in ("momentum", "label_smoothing"):
        value = getattr(settings, name)
        if not (math.isfinite(value) and 0.0 <= value < 1.0):
            raise SettingsError(f"--{name.replace('_', '-')} {value}: it must be from 0 to below 1")


def _check_shards(settings: BenchSettings) -> None:
    stages = len(settings.pipeline_splits) + 1
    if stages != settings.shards:
        splits = " ".join(settings.pipeline_splits) or NO_SPLIT
        fewer = f"--pipeline-splits {NO_SPLIT}" if settings.shards == 1 else counted(settings.shards - 1, "split")
        raise SettingsError(
            f"--shards {settings.shards} and --pipeline-splits {splits} do not agree: {counted(stages - 1, 'split')} "
            f"make {counted(stages, 'shard')}; use --shards {stages}, or {fewer}"
        )


def _check_replicas(settings: BenchSettings) -> None:
    if settings.replicas % settings.instances:
        known = [count for count in range(1, settings.replicas + 1) if settings.replicas % count == 0]
        near = min(known, key=lambda count: abs(count - settings.instances))
        raise SettingsError(
            f"--replicas {settings.replicas} cannot be shared evenly by --instances {settings.instances}; the nearest "
            f"that works is --instances {near}"
        )


def _check_loops(settings: BenchSettings) -> None:
    if settings.training and settings.is_pipelined:
        pipeline = f"--shards {settings.shards} with --pipeline"
        check_accumulation(settings.gradient_accumulation, settings.shards, pipeline, "--pipeline off")
    if settings.device_iterations < settings.least_iterations:
        raise SettingsError(
            f"--device-iterations {settings.device_iterations} cannot fill the pipeline: inference with --shards "
            f"{settings.shards} and --pipeline needs at least one batch for each; use --device-iterations "
            f"{settings.least_iterations} or more, or --pipeline off"
        )


def changes_from(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given on the command line, by name."""
    values = {each.name: getattr(parsed, each.name, None) for each in fields(BenchSettings)}
    given = {name: value for name, value in values.items() if value is not None}
    if "pipeline_splits" in given:
        splits = given["pipeline_splits"]
        given["pipeline_splits"] = () if splits == [NO_SPLIT] else tuple(splits)
    return given
