"""What a placement gives every IPU to do: work for one micro-batch, and the fullest tile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

import torchvision

import poptorch
from ipu_course import engine, show
from ipu_course.figures.bars import bars_figure

if TYPE_CHECKING:
    from ipu_course.engine import Profile

__all__ = ["show_ipus", "somebodys_placement", "work_by_ipu"]

KIB = 1024
PASSES = ("forward", "recompute", "backward")


def somebodys_placement(resnet: torchvision.models.ResNet) -> None:
    """Place ResNet-101 on four IPUs with a fault that no error tells of: a hunt for the lesson."""
    poptorch.BeginBlock(resnet.layer2[0], ipu_id=1)
    poptorch.BeginBlock(resnet.layer3[4], ipu_id=1)
    poptorch.BeginBlock(resnet.layer3[14], ipu_id=3)


def work_by_ipu(profile: Profile) -> tuple[float, ...]:
    """Seconds of all passes that one micro-batch takes on each IPU, in order; 0 for an IPU without any.

    From the first pass of each kind and stage on a profile's timeline.
    """
    found: dict[tuple[int | None, int, str], float] = {}
    for span in profile.timeline:
        if span.stage is not None and span.kind in PASSES:
            found.setdefault((span.ipu, span.stage, span.kind), span.seconds / span.repeats)
    return tuple(
        sum(seconds for (number, _, _), seconds in found.items() if number == ipu) for ipu in range(len(profile.memory))
    )


def show_ipus(profiles: Mapping[str, Profile | None]) -> None:
    """Show programs that differ in their placement: work and fullest tile of every IPU, and time of an update.

    The profiles are of calls with one weight update, all on equally many IPUs.
    """
    found = {name: profile for name, profile in profiles.items() if profile}
    if not found:
        print(engine.NOT_HERE)
        return
    work = {name: [1e3 * seconds for seconds in work_by_ipu(profile)] for name, profile in found.items()}
    ipus = [f"IPU {ipu}" for ipu in range(len(next(iter(work.values()))))]
    words = "; ".join(f"{name}: {', '.join(f'{value:.1f}' for value in values)}" for name, values in work.items())
    title = "Work of each IPU for one micro-batch (modelled)"
    show.figure(
        bars_figure(ipus, work, "ms for one micro-batch, forward to backward", title, form="{:.1f}"),
        f"Milliseconds of work for one micro-batch, modelled, from IPU 0 on. {words}.",
    )
    show.table([_row(name, profile, work[name]) for name, profile in found.items()], index="placement")


def _row(name: str, profile: Profile, milliseconds: list[float]) -> dict[str, object]:
    cells: dict[str, object] = {"placement": name}
    for number, (ipu, value) in enumerate(zip(profile.memory, milliseconds)):
        cells[f"IPU {number}"] = f"{value:.1f} ms, {ipu.max_tile_bytes / KIB:.0f} KiB"
    cells["weight update every"] = f"{1e3 * profile.device_seconds_per_call:.1f} ms"
    return cells
