"""ResNet-101 in single precision over four IPUs: one placement, and how all others compare with it."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any, Callable, Sequence

import torch
import torchvision

import poptorch
from ipu_course import engine, ladder, models, show
from ipu_course.exercises import Points, open_parts
from ipu_course.figures.histogram import histogram_figure
from ipu_course.lessons.pipelining_mnist.balance import stage_times
from ipu_course.lessons.pipelining_mnist.placement_figure import placement_figure

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

KIB = 1024
IPUS = 4
ACCUMULATION = 16
LAYER_BLOCKS = {"layer1": 3, "layer2": 4, "layer3": 23, "layer4": 3}
BLOCKS = tuple(f"{layer}.{number}" for layer, count in LAYER_BLOCKS.items() for number in range(count))
PLACEMENTS = comb(len(BLOCKS), IPUS - 1)  # three of the blocks begin on the IPUs 1, 2 and 3
# The fastest of all placements before whole blocks whose IPUs fit; the lesson's test derives it.
BEST = ("layer2.3", "layer3.7", "layer3.16")
ENOUGH = 0.95  # of the best placement's speed: further placements are too close to call

Place = Callable[[torch.nn.Module], object]


def captured_resnet(place: Place | None = None) -> ModelledModule:
    """Return ResNet-101 in single precision, after ``place(resnet)`` has added its blocks: AdamW, 16 x 64 images.

    Raises ``poptorch.Error`` or ``AssertionError`` where PopTorch refuses the placement.
    """
    resnet = torchvision.models.resnet101()
    if place is not None:
        place(resnet)
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    optimizer = poptorch.optim.AdamW(resnet.parameters())
    return engine.modelled_module(
        models.ClassifierWithLoss(resnet), ladder.micro_batch(torch.float32), options, optimizer
    )  # fmt: skip


@lru_cache(maxsize=1)  # figure, check and score ask for the same one
def profile_of(place: Place) -> Profile:
    """Return the modelled profile of a weight update of ResNet-101 after ``place(resnet)``.

    Raises ``poptorch.Error`` or ``AssertionError`` where PopTorch refuses the placement.
    """
    return captured_resnet(place).profile()


def best_seconds(module: ModelledModule) -> float:
    """Return the device time of an update with the best placement of the captured ResNet-101."""
    return module.profile(split=[f"model.{name}" for name in BEST]).device_seconds_per_call


def placement_hint(place: object, *, using: Any) -> str | None:
    """Return what is wrong with a placement over four IPUs, or ``None``; ``using`` is the captured ResNet-101."""
    if not callable(place):
        return f"place has to be a function of the network; you wrote {place!r}."
    try:
        profile = profile_of(place)
    except (poptorch.Error, AssertionError) as problem:
        return f"PopTorch refuses this placement: {str(problem).split(': ', 1)[-1]}"
    return _ipus_hint(profile) or _memory_hint(profile) or _time_hint(profile, best_seconds(using))


def update_milliseconds(place: Place, *, using: Any) -> Points:
    """Return the time of a weight update with ``place``, as the score of a right answer."""
    return Points(1e3 * profile_of(place).device_seconds_per_call, "ms for a weight update (modelled)", "lower")


def _ipus_hint(profile: Profile) -> str | None:
    idle = [number for number, ipu in enumerate(profile.memory) if not ipu.max_tile_bytes]
    if idle:
        return f"IPU {idle[0]} has no work: no block has ipu_id={idle[0]}."
    if len(profile.memory) < IPUS:
        return (
            f"Your placement uses {len(profile.memory)} of the {IPUS} IPUs. Begin a block with poptorch.BeginBlock for "
            "each of ipu_id=1, 2 and 3; what comes before the first block is on IPU 0."
        )
    if len(profile.memory) > IPUS:
        return f"Your placement uses {len(profile.memory)} IPUs, and there are {IPUS}: ipu_id goes from 0 to 3."
    return None


def _memory_hint(profile: Profile) -> str | None:
    kib = [ipu.max_tile_bytes / KIB for ipu in profile.memory]
    limit = profile.memory.tile_bytes / KIB
    if max(kib) <= limit:
        return None
    full = kib.index(max(kib))
    close = engine.memory_verdict(profile) == "too close to call"
    where = "the IPU after it" if full == 0 else "the IPU before it"
    return (
        f"The fullest tile of IPU {full} needs {kib[full]:.0f} KiB, and the exercise asks for at most {limit:.0f}"
        f"{', although the model finds it too close to call' if close else ''}. Move a block to {where}."
    )


def _time_hint(profile: Profile, best: float) -> str | None:
    score = best / profile.device_seconds_per_call
    if score >= ENOUGH:
        return None
    times = [each.total for each in stage_times(profile)]
    slowest = times.index(max(times))
    return (
        f"Every IPU fits, and the update is {score:.1%} as fast as with the best placement; {ENOUGH:.0%} are asked "
        f"for. The longest stage is on IPU {slowest}: break it up, and give a block of it to a neighbour that has less "
        "to do."
    )


def show_placement(place: Place, best: ModelledModule) -> None:
    """Show the work and the fullest tile of each IPU with a learner's placement, and its score against the best.

    ``best`` is the captured ResNet-101.
    """
    if open_parts("place", place):
        print("Write place(resnet) first: the work and the memory of its IPUs are then drawn here.")
        return
    if best is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    try:
        profile = profile_of(place)
    except Exception:  # whatever a learner's code raises, the check names it
        print("This placement cannot be drawn: the check below says why.")
        return
    milliseconds = [1e3 * each.total for each in stage_times(profile)]
    kib = [ipu.max_tile_bytes / KIB for ipu in profile.memory if ipu.max_tile_bytes]
    score = best_seconds(best) / profile.device_seconds_per_call
    described = "; ".join(f"IPU {n}: {t:.2f} ms, {m:.0f} KiB" for n, (t, m) in enumerate(zip(milliseconds, kib)))
    show.figure(
        placement_figure(milliseconds, kib, profile.memory.tile_bytes / KIB),
        f"A weight update takes {1e3 * profile.device_seconds_per_call:.1f} ms: {score:.1%} of the best one's speed "
        "(modelled).",
        f"Work for one micro-batch and fullest tile of each IPU, modelled. {described}.",
    )


def estimated_seconds(profile: Profile) -> dict[tuple[str, ...], float]:
    """Return an estimate of an update's computation for every placement before whole blocks.

    From the cycles of the operations of one profile: in each pipeline step the IPU with the most to do counts. The
    transfers, about the same with every placement, are left out.
    """
    forward, backward = _unit_seconds(profile)
    return {
        names: _update_seconds(_stages(forward, names), _stages(backward, names))
        for names in combinations(BLOCKS, IPUS - 1)
    }


def _unit_seconds(profile: Profile) -> tuple[list[float], list[float]]:
    """Return the forward and the backward time of what comes before the first block, and of each block."""
    forward, backward = [0.0] * (len(BLOCKS) + 1), [0.0] * (len(BLOCKS) + 1)
    for op in profile.ops:
        cycles = op.on_tile_execute + op.do_exchange + op.internal_sync
        (forward if op.phase == "forward" else backward)[_unit(op.scope)] += cycles / profile.machine.clock_hz
    return forward, backward


def _unit(scope: str) -> int:
    parts = scope.split(".")
    if len(parts) > 1 and parts[1] in LAYER_BLOCKS:
        return BLOCKS.index(".".join(parts[1:3])) + 1
    return 0 if len(parts) > 1 and parts[1] in ("conv1", "bn1", "relu", "maxpool") else len(BLOCKS)


def _stages(units: Sequence[float], names: Sequence[str]) -> list[float]:
    borders = [0, *(BLOCKS.index(name) + 1 for name in names), len(units)]
    return [sum(units[begin:end]) for begin, end in zip(borders, borders[1:])]


def _update_seconds(forward: Sequence[float], backward: Sequence[float]) -> float:
    last, seconds = len(forward) - 1, 0.0
    again = [time + (forward[stage] if stage < last else 0.0) for stage, time in enumerate(backward)]
    for step in range(ACCUMULATION + 2 * last):
        seconds += max(
            (forward[stage] if 0 <= step - stage < ACCUMULATION else 0.0)
            + (again[stage] if 0 <= step - (2 * last - stage) < ACCUMULATION else 0.0)
            for stage in range(len(forward))
        )
    return seconds


def show_all_placements(module: ModelledModule, place: Place) -> None:
    """Show the estimated update times of all placements of the captured ResNet-101, with the best one and ``place``."""
    if module is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    best = module.profile(split=[f"model.{name}" for name in BEST])
    estimates = estimated_seconds(best)
    transfers = best.device_seconds_per_call - estimates[BEST]
    milliseconds = sorted(1e3 * (estimate + transfers) for estimate in estimates.values())
    fastest = 1e3 * best.device_seconds_per_call
    limit = best.error_band.high * fastest
    near = sum(time <= limit for time in milliseconds)
    marked = {"the best that fits": fastest, **_marked(place)}
    words = ", ".join(f"{name}: {time:.1f} ms" for name, time in marked.items())
    median = milliseconds[len(milliseconds) // 2]
    show.figure(
        histogram_figure(
            {"placements": milliseconds},
            "ms for a weight update (estimated)",
            "Update times of all placements",
            ylabel="share of all placements",
            bands={"too close to call": (fastest, limit)},
            marked={f"{name}, {time:.1f} ms": time for name, time in marked.items()},
        ),
        f"{near} of {len(milliseconds):,} placements are within {best.error_band.high - 1:.0%} of the best one that "
        "fits, the model's own error: too close to call.",
        f"Estimated update times of {len(milliseconds):,} placements: from {milliseconds[0]:.0f} ms to "
        f"{milliseconds[-1]:.0f} ms, half of them above {median:.0f} ms. Marked: {words}.",
    )


def _marked(place: Place) -> dict[str, float]:
    """Return the update time of a learner's placement; nothing while it is open, or where PopTorch refuses it."""
    if open_parts("place", place):
        return {}
    try:
        return {"yours": 1e3 * profile_of(place).device_seconds_per_call}
    except Exception:  # whatever a learner's code raises, the check has named it
        return {}
