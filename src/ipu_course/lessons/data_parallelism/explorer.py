"""Lesson 10's explorer: replicas, and the processes, workers and hosts that feed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from ipu_course import engine
from ipu_course.explorers.controls import Choice, Slider, Switch
from ipu_course.explorers.explorer import View, explore
from ipu_course.lessons.data_parallelism.scaling import limiter, update_share
from ipu_course.lessons.data_parallelism.scaling_figure import scaling_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ipu_course.engine import HostWork, ModelledModule, ScalingPoint

REPLICAS = (1, 2, 4, 8, 16, 32, 64)
ACCUMULATIONS = (1, 4, 16, 64, 256, 1024)
WORKERS = (0, 1, 2, 4, 8, 16, 32, 64)
HOSTS = (1, 2, 4)
ALL = 0
INSTANCES = {"one for all": ALL, "one for each replica": 1, "one for 2 replicas": 2, "one for 4 replicas": 4}
# Assumed in this lesson: decoding and cropping a photograph, and the cores of a host.
IMAGE_SECONDS, CORES = 0.002, 64


def loading_host(workers: int, hosts: int = 1) -> HostWork | None:
    """A host that loads in the background, 2 ms an image, with 64 cores; ``None`` without an IPU Model."""
    return engine.host_work(
        IMAGE_SECONDS, 0.0, True, workers, "assumed in lesson 10: 2 ms an image", hosts=hosts, cores_per_host=CORES
    )


def explore_scaling(modelled: ModelledModule | None, replicas: int = 16, accumulation: int = 16) -> None:
    """Show the explorer of a program that trains on images; the other arguments are its first settings."""
    if not modelled:
        print(engine.NOT_HERE)
        return

    def view(replicas: int, instances: int, workers: int, hosts: int, accumulation: int, constant: bool) -> View:
        return scaling_view(modelled, replicas, instances, workers, hosts, accumulation, constant)

    explore(
        {
            "replicas": Slider("replicas", REPLICAS, replicas),
            "instances": Choice("instances", INSTANCES, 2),
            "workers": Slider("loader workers of each", WORKERS, 8),
            "hosts": Slider("hosts of 64 cores", HOSTS, 1),
            "accumulation": Slider("accumulation of one replica", ACCUMULATIONS, accumulation),
            "constant": Switch("constant global batch", False),
        },
        view,
    )


def scaling_view(
    modelled: ModelledModule,
    replicas: int,
    instances: int,
    workers: int,
    hosts: int,
    accumulation: int,
    constant: bool,
) -> View:
    """Throughput over replicas with these settings, and what limits at the chosen number of them."""
    alone = modelled.profile(replicas=1, gradient_accumulation=accumulation).samples_per_second
    points = modelled.scaling(
        REPLICAS,
        host=loading_host(workers, hosts),
        replicas_per_instance=instances or None,
        constant_global_batch=constant,
        gradient_accumulation=accumulation,
    )
    chosen = points[REPLICAS.index(replicas)]
    if chosen.profile is None:
        return View(text=f"PopTorch cannot run this: {chosen.refused}")
    row = _row(chosen, alone)
    figure = _figure(points, alone, chosen, str(row["limited by"]))
    said = (
        f"Images a second against replicas, theory and modelled. With {replicas} replicas {row['images a second']} "
        f"images a second are modelled, limited by: {row['limited by']}."
    )
    return View(figure, description=said, rows=[row])


def _figure(points: Sequence[ScalingPoint], alone: float, chosen: ScalingPoint, limited: str) -> Figure:
    rate = chosen.samples_per_second
    return scaling_figure(
        REPLICAS,
        [alone * count for count in REPLICAS],
        [point.samples_per_second if point.profile else None for point in points],
        (chosen.replicas, rate),
        f"{chosen.replicas} replicas: {rate:,.0f} images a second (modelled), limited by: {limited}",
    )


def _row(point: ScalingPoint, alone: float) -> dict[str, object]:
    profile = point.profile
    assert profile is not None
    return {
        "replicas": point.replicas,
        "instances": point.instances,
        "accumulation": point.accumulation,
        "global batch": f"{point.global_batch:,}",
        "images a second": f"{point.samples_per_second:,.0f}",
        "efficiency": f"{point.samples_per_second / (alone * point.replicas):.0%}",
        "limited by": limiter(profile),
        "all-reduce and update": f"{update_share(profile):.0%}",
    }
