"""What several replicas do to the host path: one process feeds them all, over one link."""

from __future__ import annotations

from functools import lru_cache

import torch

from ipu_course import engine, show
from ipu_course.lessons.the_host_path.land_cover import (
    BYTES,
    HostPath,
    PixelClassifier,
    land_cover,
    profile_classifier,
    step_milliseconds,
)

REPLICAS, DEPTHS = (1, 2, 4, 8), (0, 1, 3)


@engine.needs_the_model
@lru_cache(maxsize=32)
def replicated_step(replicas: int, depth: int) -> float:
    """Return the milliseconds of a step of all replicas in one process, with class bytes and without overlap."""
    path = HostPath(depth, results=BYTES)
    with torch.device("meta"):
        module = PixelClassifier(land_cover(), path.results)
    return step_milliseconds(profile_classifier(module, path.options().replicationFactor(replicas)))


def show_replicas() -> None:
    """Show the step with 1 to 8 replicas in one process, without prefetching and with two depths."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    rows = [
        {"replicas": replicas, **{_column(depth): f"{replicated_step(replicas, depth):.1f} ms" for depth in DEPTHS}}
        for replicas in REPLICAS
    ]
    show.table(rows, index="replicas")
    print("A step of all replicas in one process, class bytes, no I/O tiles (modelled).")


def _column(depth: int) -> str:
    return f"prefetch depth {depth}" if depth else "no prefetching"
