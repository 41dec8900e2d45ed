"""Lesson 10's explorer: replicas, and the processes, workers and hosts that feed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from ipu_course import engine
from ipu_course.explorers import Choice, Explorer, Slider, Switch, View
from ipu_course.lessons.data_parallelism.scaling import bottleneck, update_share
from ipu_course.lessons.data_parallelism.scaling_figure import scaling_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ipu_course.engine import HostWork, ModelledModule, ScalingPoint

REPLICAS = (1, 2, 4, 8, 16, 32, 64)
ACCUMULATIONS = (3, 16, 64, 256)
WORKERS = (1, 2, 4, 8, 16)
HOSTS = (1, 2, 4)
ALL = 0
INSTANCES = {"one for all": ALL, "one for 4 replicas": 4, "one for 2 replicas": 2}
# Assumed in this lesson: the time to decode and crop a photograph, and the cores of a host.
IMAGE_SECONDS, CORES = 0.002, 64


def loading_host(workers: int, hosts: int = 1) -> HostWork:
    """Return a host that loads in the background, at 2 ms an image, with 64 cores."""
    return engine.host_work(
        IMAGE_SECONDS, 0.0, True, workers, "assumed in lesson 10: 2 ms an image", hosts=hosts, cores_per_host=CORES
    )


def scaling_view(
    modelled: ModelledModule, replicas: int, instances: int, workers: int, hosts: int, accumulation: int, constant: bool
) -> View:
    """Show the throughput over replicas with these settings, and the bottleneck at the chosen number of them."""
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
    row = _row(chosen, alone, workers, hosts)
    return View(
        _figure(points, alone, chosen),
        takeaway=f"{replicas} replicas reach {row['efficiency']} of perfect scaling (modelled).",
        description="Images per second against replicas, perfect scaling and modelled, both axes logarithmic. With "
        f"{replicas} replicas {row['images/s']} images per second are modelled. The bottleneck: "
        f"{row['bottleneck']}.",
        rows=[row],
    )


def _figure(points: Sequence[ScalingPoint], alone: float, chosen: ScalingPoint) -> Figure:
    return scaling_figure(
        REPLICAS,
        [alone * count for count in REPLICAS],
        [point.samples_per_second if point.profile else None for point in points],
        (chosen.replicas, chosen.samples_per_second),
        f"{chosen.replicas} replicas: {chosen.samples_per_second:,.0f} images/s (modelled)",
    )


def _row(point: ScalingPoint, alone: float, workers: int, hosts: int) -> dict[str, object]:
    profile = point.profile
    assert profile is not None
    return {
        "replicas": point.replicas,
        "instances": point.instances,
        "loaders on cores": f"{workers * point.instances:,} on {CORES * hosts}",
        "accumulation": point.accumulation,
        "global batch": f"{point.global_batch:,}",
        "images/s": f"{point.samples_per_second:,.0f}",
        "efficiency": f"{point.samples_per_second / (alone * point.replicas):.0%}",
        "bottleneck": bottleneck(profile),
        "all-reduce and update": f"{update_share(profile):.0%}",
    }


SCALING = Explorer(
    controls={
        "replicas": Slider("replicas", REPLICAS, 16),
        "instances": Choice("instances", INSTANCES, ALL),
        "workers": Slider("loader workers of each instance", WORKERS, 8),
        "hosts": Slider("hosts of 64 cores", HOSTS, 1),
        "accumulation": Slider("accumulation with one replica", ACCUMULATIONS, 16),
        "constant": Switch("constant global batch", False),
    },
    view=scaling_view,
)
