"""What a placement gives every IPU to do: work for one micro-batch, and the fullest tile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Mapping

import torch
import torchvision

import poptorch
from ipu_course import engine, ladder, models, show
from ipu_course.exercises import Points, as_number
from ipu_course.figures.bars import bars_figure

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

KIB = 1024
PASSES = ("forward", "recompute", "backward")
IPUS, ACCUMULATION = 4, 16
IDLE, CROWDED = 2, 1
INTENDED = ("layer2.0", "layer3.4", "layer3.14")
ROUNDING = 1.001  # the intended placement is right, however it is written

Place = Callable[[torch.nn.Module], object]

IDLE_HINTS: Mapping[float, str] = {
    0: "IPU 0 has less work than the others, but it has some. Which one has none?",
    1: "IPU 1 has the most work of all. Which one has none?",
    3: "The IPUs count from 0: the third one is IPU 2. IPU 3 has work.",
}
CROWDED_HINTS: Mapping[float, str] = {
    0: "IPU 0 has the least work of those that have any. Which takes longest?",
    2: "The IPUs count from 0: the second one is IPU 1. IPU 2 has no work.",
    3: "IPU 3 has one stage, and its fullest tile holds the most weights. Which IPU takes about twice as long?",
}


def somebodys_placement(resnet: torchvision.models.ResNet) -> None:
    """Place ResNet-101 on four IPUs with a fault that no error message reports."""
    poptorch.BeginBlock(resnet.layer2[0], ipu_id=1)
    poptorch.BeginBlock(resnet.layer3[4], ipu_id=1)
    poptorch.BeginBlock(resnet.layer3[14], ipu_id=3)


def resnet_on_four_ipus(place: Place) -> ModelledModule:
    """Return ResNet-101 in half precision after ``place(resnet)``: AdamW, 16 micro-batches of 64 in an update.

    Raises ``poptorch.Error`` or ``AssertionError`` where PopTorch refuses the placement.
    """
    resnet = torchvision.models.resnet101()
    place(resnet)
    resnet = resnet.half()
    adamw = poptorch.optim.AdamW(resnet.parameters(), accum_type=torch.half, first_order_momentum_accum_type=torch.half)
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    return engine.modelled_module(
        models.ClassifierWithLoss(resnet), ladder.micro_batch(torch.half), options, adamw
    )  # fmt: skip


def placement_hint(idle: object, crowded: object, place: object, *, using: ModelledModule) -> str | None:
    """Return the hint for the two IPUs of the fault and for a placement without it; ``using`` is the faulty program."""
    found = _ipu_hint("idle", idle, IDLE, IDLE_HINTS) or _ipu_hint("crowded", crowded, CROWDED, CROWDED_HINTS)
    if found:
        return found
    if not callable(place):
        return f"place has to be a function of the network; you wrote {place!r}."
    try:
        profile = resnet_on_four_ipus(place).profile()
    except (poptorch.Error, AssertionError) as problem:
        return f"PopTorch refuses this placement: {str(problem).split(': ', 1)[-1]}"
    wanted = intended_profile(using).device_seconds_per_call
    return _ipus_hint(profile) or _memory_hint(profile) or _time_hint(profile, wanted)


def update_milliseconds(idle: object, crowded: object, place: Place, *, using: ModelledModule) -> Points:
    """Return the time of a weight update with ``place``, as the score of a right answer."""
    seconds = resnet_on_four_ipus(place).profile().device_seconds_per_call
    return Points(1e3 * seconds, "ms for a weight update (modelled)", "lower")


def intended_profile(program: ModelledModule) -> Profile:
    """Return the profile of the captured ResNet-101 with the placement that somebody meant to write."""
    return program.profile(split=[f"model.{name}" for name in INTENDED])


def _ipu_hint(name: str, answer: object, wanted: int, hints: Mapping[float, str]) -> str | None:
    number = as_number(answer)
    if number is None:
        return f"{name} is the number of an IPU; you wrote {answer!r}."
    return None if number == wanted else hints.get(number, "The IPUs count from 0, so their numbers are 0 to 3.")


def _ipus_hint(profile: Profile) -> str | None:
    work = work_by_ipu(profile)
    if len(work) > IPUS:
        return f"Your placement uses {len(work)} IPUs, and there are {IPUS}: ipu_id goes from 0 to 3."
    idle = work.index(0.0) if 0.0 in work else len(work)
    if idle < IPUS:
        return f"With your placement IPU {idle} has no work: no block has ipu_id={idle}."
    return None


def _memory_hint(profile: Profile) -> str | None:
    fullest = max(ipu.max_tile_bytes for ipu in profile.memory)
    if fullest <= profile.memory.tile_bytes:
        return None
    return f"The fullest tile needs {fullest / KIB:.0f} KiB, and a tile has {profile.memory.tile_bytes / KIB:.0f}."


def _time_hint(profile: Profile, wanted: float) -> str | None:
    seconds = profile.device_seconds_per_call
    if seconds <= ROUNDING * wanted:
        return None
    return (
        f"All four IPUs work, but a weight update takes {1e3 * seconds:.1f} ms, and {1e3 * wanted:.1f} ms are possible "
        "without moving the beginning of any block. Change only what the fault is."
    )


def work_by_ipu(profile: Profile) -> tuple[float, ...]:
    """Return the seconds of all passes of one micro-batch on each IPU, in order; 0 for an IPU without any.

    The seconds are those of the first pass of each kind and stage on the profile's timeline.
    """
    found: dict[tuple[int | None, int, str], float] = {}
    for span in profile.timeline:
        if span.stage is not None and span.kind in PASSES:
            found.setdefault((span.ipu, span.stage, span.kind), span.seconds / span.repeats)
    return tuple(
        sum(seconds for (number, _, _), seconds in found.items() if number == ipu) for ipu in range(len(profile.memory))
    )


def show_ipus(profiles: Mapping[str, Profile]) -> None:
    """Show programs that differ in their placement: work and fullest tile of every IPU, and time of an update.

    The profiles are of calls with one weight update, all on equally many IPUs.
    """
    if engine.NOT_MODELLED in profiles.values():
        print(engine.NOT_HERE)
        return
    work = {name: [1e3 * seconds for seconds in work_by_ipu(profile)] for name, profile in profiles.items()}
    ipus = [f"IPU {ipu}" for ipu in range(len(next(iter(work.values()))))]
    words = "; ".join(f"{name}: {', '.join(f'{value:.1f}' for value in values)}" for name, values in work.items())
    longest = [f"{max(values):.1f} ms {name}" for name, values in work.items()]
    show.figure(
        bars_figure(
            ipus, work, "ms for one micro-batch, forward to backward", "Work of each IPU (modelled)", form="{:.1f}"
        ),
        f"The IPU with the most work sets the pace of the pipeline: {' and '.join(longest)}.",
        f"Milliseconds of work for one micro-batch, modelled, from IPU 0 on. {words}.",
    )
    show.table([_row(name, profile, work[name]) for name, profile in profiles.items()], index="placement")


def _row(name: str, profile: Profile, milliseconds: list[float]) -> dict[str, object]:
    cells: dict[str, object] = {"placement": name}
    for number, (ipu, value) in enumerate(zip(profile.memory, milliseconds)):
        cells[f"IPU {number}"] = f"{value:.1f} ms, {ipu.max_tile_bytes / KIB:.0f} KiB"
    cells["weight update"] = f"{1e3 * profile.device_seconds_per_call:.1f} ms"
    return cells
