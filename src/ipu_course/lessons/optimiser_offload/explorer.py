"""Lesson 08's explorer: where the optimiser's state lives, and what that saves and costs in a full-size program."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Mapping

import torch
from torch import Tensor, nn

import poptorch
from ipu_course import engine
from ipu_course.explorers import Choice, Explorer, Slider, Switch, View
from ipu_course.lessons.optimiser_offload.parts import kib_by_part
from ipu_course.lessons.optimiser_offload.update_parts_figure import COPIES, update_figure

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

KIB = 1024
ACCUMULATIONS = (3, 8, 16, 32, 48, 56, 57, 58, 60, 61, 62, 63, 64, 96, 128)
ADAMW, MOMENTUM, PLAIN = "AdamW", "SGD with momentum", "SGD"
# The parts of a profile's device time, by what a learner of this lesson asks for.
PARTS = {
    "passes": ("main",),
    "filling and draining": ("fill and flush",),
    "streams, copies, waiting": ("stream", "copy", "sync", "collective", "run start"),
    "the optimiser's arithmetic": ("update",),
    COPIES: ("offload",),
}


def offload_view(modelled: ModelledModule, accumulation: int, optimiser: str, off_chip: bool) -> View:
    """Show one weight update of the program with these settings, and how it compares with state on the chip."""
    changes: dict[str, Any] = {"gradient_accumulation": accumulation, "optimizer": _specification(optimiser)}
    profile = modelled.profile(optimiser_off_chip=off_chip, **changes)
    on_chip = modelled.profile(optimiser_off_chip=False, **changes)
    most = max(range(len(on_chip.memory)), key=lambda ipu: on_chip.memory[ipu].bytes_by_category["variables"])
    times, kib = milliseconds(profile), kib_by_part(profile, most)
    place = "off" if off_chip else "on"
    longer = profile.device_seconds_per_call / on_chip.device_seconds_per_call - 1
    return View(
        update_figure(
            times,
            kib,
            f"KiB on IPU {most}'s fullest tile",
            f"{optimiser}, state {place} the chip, accumulation {accumulation} (modelled)",
        ),
        takeaway=f"The copies take {times[COPIES]:.1f} ms of an update of {sum(times.values()):.1f} ms (modelled).",
        description=f"Parts of one weight update in ms, modelled: {_list(times)}. KiB on IPU {most}'s fullest tile: "
        f"{_list(kib)}.",
        rows=[_row(profile, longer)],
    )


def _row(profile: Profile, longer: float) -> dict[str, object]:
    memory = profile.memory
    return {
        "one weight update": f"{1e3 * profile.device_seconds_per_call:.1f} ms",
        "longer than on the chip by": f"{longer:.1%}",
        "copies' share of the time": f"{profile.shares['offload']:.1%}",
        "fullest tile": f"{memory.max_tile_bytes / KIB:.0f} of {memory.tile_bytes / KIB:.0f} KiB",
        "the model's verdict": engine.memory_verdict(profile),
    }


def milliseconds(profile: Profile) -> dict[str, float]:
    """Return the milliseconds of one weight update by part."""
    whole = 1e3 * profile.device_seconds_per_call
    return {name: whole * sum(profile.shares[share] for share in shares) for name, shares in PARTS.items()}


def _list(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in parts.items())


class _One(nn.Module):
    """The smallest module that trains: only its optimiser is of interest."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return poptorch.identity_loss((self.weight * x).sum(), reduction="none")


@lru_cache(maxsize=4)
def _specification(optimiser: str) -> object:
    """Return the named optimiser, with all its state in 32 bits, as the IPU Model knows it."""
    module, options = _One(), poptorch.Options()
    options.Training.gradientAccumulation(2)
    made: torch.optim.Optimizer
    if optimiser == ADAMW:
        made = poptorch.optim.AdamW(module.parameters())
    else:
        # PopTorch would keep a velocity for a momentum of 0.0, too; None keeps it a constant.
        made = poptorch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9 if optimiser == MOMENTUM else None)
    return engine.modelled_module(module, (torch.zeros(1, 8),), options, made).optimiser


OFFLOAD = Explorer(
    controls={
        "accumulation": Slider("gradient accumulation", ACCUMULATIONS, 8),
        "optimiser": Choice("optimiser", {name: name for name in (ADAMW, MOMENTUM, PLAIN)}, ADAMW),
        "off_chip": Switch("state off the chip", True),
    },
    view=offload_view,
)
