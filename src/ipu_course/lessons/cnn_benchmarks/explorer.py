"""Lesson 09's explorer: one inference benchmark, its throughput, latency and memory, and what limits it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ipu_course import engine
from ipu_course.errors import CourseError
from ipu_course.explorers.controls import Choice, Slider
from ipu_course.explorers.explorer import View, explore
from ipu_course.lessons.cnn_benchmarks.batches import share_of_peak
from ipu_course.lessons.cnn_benchmarks.benchmark_figure import one_batch_figure
from ipu_course.programs.bench import changed, configuration, modelled_result

if TYPE_CHECKING:
    from ipu_course.programs.bench import Result

BATCHES = (1, 2, 4, 8, 16, 32, 64, 90)
IPUS = (1, 4, 16)
# The page's configuration of each network, and what is changed in it.
NETWORKS = {
    "ResNet-50": ("resnet50-infer-generated", {}),
    "ResNeXt-101": ("resnext101-infer-generated", {}),
    "EfficientNet-B0": ("efficientnet-b0-infer-generated", {}),
    "EfficientNet-B0, group dim 16": ("efficientnet-b0-infer-generated", {"group_dim": 16, "expand_ratio": 4}),
}
SYNTHETIC, BYTES, HALVES = "synthetic: nothing is sent", "generated, 8 bits", "generated, 16 bits"
DATA = {
    SYNTHETIC: {"data": "synthetic", "eight_bit_io": False},
    BYTES: {"data": "generated", "eight_bit_io": True},
    HALVES: {"data": "generated", "eight_bit_io": False},
}
IPUS_OF_AN_M2000 = 4


def explore_benchmark(network: str = "ResNet-50", batch: int = 16, data: str = BYTES, ipus: int = 4) -> None:
    """Show the explorer; the arguments are its first settings."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    explore(
        {
            "network": Choice("network", {name: name for name in NETWORKS}, network),
            "batch": Slider("batch size", BATCHES, batch),
            "data": Choice("data", {name: name for name in DATA}, data),
            "ipus": Slider("IPUs", IPUS, ipus),
        },
        benchmark_view,
    )


def benchmark_view(network: str, batch: int, data: str, ipus: int) -> View:
    """One benchmark: the parts of one batch's latency, the fullest tile, and the row of a table."""
    try:
        result = benchmark_result(network, batch, data, ipus)
    except CourseError as problem:
        return View(text=f"There is no result for this setting: {problem}")
    if result is None:
        return View(text=engine.NOT_HERE)
    parts = batch_parts(result)
    title = f"{network}, batch {batch} on each of {ipus} IPU{'s' * (ipus > 1)}, {data} (modelled)"
    words = ", ".join(f"{name} {value:.2f}" for name, value in parts.items())
    described = (
        f"Parts of one batch's latency in ms: {words}. The fullest tile holds {result.tile_kib:.0f} of "
        f"{result.tile_limit_kib:.0f} KiB. Modelled."
    )
    drawn = one_batch_figure(parts, result.tile_kib, result.tile_limit_kib, title)
    return View(drawn, description=described, rows=[_row(result)], text=" ".join(result.profile.notes))


@lru_cache(maxsize=256)
def benchmark_result(network: str, batch: int, data: str, ipus: int) -> Result | None:
    """The modelled result; networks and batches that are new take about a second, the others none.

    Raises ``CourseError`` for what the model refuses.
    """
    name, changes = NETWORKS[network]
    machine = "M2000" if ipus <= IPUS_OF_AN_M2000 else "POD16"
    settings = changed(
        configuration(name).settings, batch_size=batch, replicas=ipus, instances=ipus, machine=machine, **changes
    )
    return modelled_result(changed(settings, **DATA[data]), network)


def batch_parts(result: Result) -> dict[str, float]:
    """The latency of one batch in ms: computing, sending in a long loop, and what each call adds."""
    steady = 1e3 * result.settings.images_per_batch / result.images_per_second
    sending = steady * result.profile.shares["stream"]
    latency = 1e3 * (result.latency_seconds or 0.0)
    return {"the IPU computes": steady - sending, "images are sent": sending, "the call": max(0.0, latency - steady)}


def _row(result: Result) -> dict[str, object]:
    band = result.profile.error_band
    return {
        "images/s": f"{result.images_per_second:,.0f}",
        "error band of the time": f"{band.low:g} to {band.high:g}",
        "latency": f"{1e3 * (result.latency_seconds or 0.0):.2f} ms",
        "of peak": f"{share_of_peak(result):.0%}",
        "host sends": f"{result.loader_bytes_per_second / 1e9:.1f} GB/s",
        "memory": result.verdict,
        "limited by": result.profile.limited_by,
    }
