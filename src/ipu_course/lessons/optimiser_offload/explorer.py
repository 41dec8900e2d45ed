"""Lesson 08's explorer: where the optimiser's state lives, and what that saves and costs in a full-size program."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Mapping

import torch
from torch import Tensor, nn

import poptorch
from ipu_course import engine
from ipu_course.explorers.controls import Choice, Slider, Switch
from ipu_course.explorers.explorer import View, explore
from ipu_course.lessons.optimiser_offload.update_parts_figure import update_figure

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

KIB = 1024
ACCUMULATIONS = (3, 8, 16, 32, 64, 128)
ADAMW, MOMENTUM = "AdamW", "SGD with momentum"
HALF, FULL = "16 bits (second moment: 32)", "32 bits"
TYPES = {HALF: torch.float16, FULL: torch.float32}
STATE, REST = "optimiser state", "everything else"
COPIES = "copies of state"
# The parts of a profile's device time, by what a learner of this lesson asks for.
PARTS = {
    "passes": ("main",),
    "filling and flushing": ("fill and flush",),
    "streams, copies, waiting": ("stream", "copy", "sync", "collective", "run start"),
    "optimiser's arithmetic": ("update",),
    COPIES: ("offload",),
}


def explore_offload(modelled: ModelledModule | None, accumulation: int = 8, off_chip: bool = True) -> None:
    """Show the explorer of a program that trains in a pipeline; the other arguments are its first settings."""
    if not modelled:
        print(engine.NOT_HERE)
        return

    def view(off_chip: bool, accumulation: int, optimiser: str, state: str) -> View:
        return offload_view(modelled, off_chip, accumulation, optimiser, state)

    explore(
        {
            "off_chip": Switch("state off chip", off_chip),
            "accumulation": Slider("gradient accumulation", ACCUMULATIONS, accumulation),
            "optimiser": Choice("optimiser", {name: name for name in (ADAMW, MOMENTUM)}, ADAMW),
            "state": Choice("state in", {name: name for name in TYPES}, HALF),
        },
        view,
    )


def offload_view(modelled: ModelledModule, off_chip: bool, accumulation: int, optimiser: str, state: str) -> View:
    """One weight update of the program with these settings, and how it compares with state on the chip."""
    changes: dict[str, Any] = {
        "gradient_accumulation": accumulation,
        "device_iterations": 1,
        "optimizer": _specification(optimiser, state),
    }
    profile = modelled.profile(optimiser_off_chip=off_chip, **changes)
    on_chip = modelled.profile(optimiser_off_chip=False, **changes)
    most = max(range(len(on_chip.memory)), key=lambda ipu: on_chip.memory[ipu].bytes_by_category.get(STATE, 0.0))
    times, kib = _milliseconds(profile), _kib(profile, most)
    place = "off" if off_chip else "on"
    title = f"{optimiser}, state {place} chip, accumulation {accumulation} (modelled)"
    said = (
        f"Parts of one weight update in ms: {_list(times)}. KiB on IPU {most}'s fullest tile: {_list(kib)}. Modelled."
    )
    drawn = update_figure(times, kib, f"KiB on IPU {most}'s fullest tile", title)
    return View(drawn, description=said, rows=[_row(profile, on_chip)])


def _row(profile: Profile, on_chip: Profile) -> dict[str, object]:
    longer = profile.device_seconds_per_call / on_chip.device_seconds_per_call - 1
    memory = profile.memory
    return {
        "weight update every": f"{1e3 * profile.device_seconds_per_call:.1f} ms",
        "longer than on chip by": f"{longer:.0%}",
        "copies of state": f"{profile.shares['offload']:.0%}",
        "fullest tile of all": f"{memory.max_tile_bytes / KIB:.0f} of {memory.tile_bytes / KIB:.0f} KiB",
        "fits": engine.fits_in_a_word(profile),
    }


def _milliseconds(profile: Profile) -> dict[str, float]:
    whole = 1e3 * profile.device_seconds_per_call
    return {name: whole * sum(profile.shares[share] for share in shares) for name, shares in PARTS.items()}


def _kib(profile: Profile, ipu: int) -> dict[str, float]:
    parts = {name: size / KIB for name, size in profile.memory[ipu].bytes_by_category.items()}
    kept = {name: parts.pop(name, 0.0) for name in ("variables", "gradient accumulators", STATE)}
    return {REST: sum(parts.values()), **kept}


def _list(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in parts.items())


class _One(nn.Module):
    """The smallest module that trains: only its optimiser is of interest."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return poptorch.identity_loss((self.weight * x).sum(), reduction="none")


@lru_cache(maxsize=8)
def _specification(optimiser: str, state: str) -> object | None:
    """The named optimiser as the IPU Model knows it."""
    module, dtype = _One(), TYPES[state]
    made = _optimizer(optimiser, dtype, module)
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    found = engine.modelled_module(module, (torch.zeros(1, 8),), options, made)
    return None if found is engine.NOT_MODELLED else found.optimiser


def _optimizer(optimiser: str, dtype: torch.dtype, module: nn.Module) -> torch.optim.Optimizer:
    half: Any = {"accum_type": torch.float16, "loss_scaling": 1000}
    if optimiser == MOMENTUM:
        return poptorch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, velocity_accum_type=dtype, **half)
    return poptorch.optim.AdamW(module.parameters(), first_order_momentum_accum_type=dtype, **half)
