"""Lesson 01's explorer: types of data, model, optimiser state and partial sums; memory against the limit, and rate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Mapping

import torch

from ipu_course import engine, ladder
from ipu_course.explorers.controls import Choice
from ipu_course.explorers.explorer import View, explore
from ipu_course.lessons.half_precision.views import memory_cells, memory_figure, memory_words

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

TYPES = {"fp32": torch.float32, "fp16": torch.float16}
HALF_PARTIALS = {"fp32": False, "fp16": True}
FP16_MOMENTS = (
    "Memory only: with second moments in fp16, the training above gave no numbers any more. Keep them in fp32."
)

Captured = Mapping[str, "ModelledModule | None"]


def explore_precision(captured: Captured) -> None:
    """Show the explorer of programs that were captured in each precision, such as ``{"16.16": ...}``.

    Without an IPU Model it says so, as there is nothing to explore.
    """
    names = [name for name, module in captured.items() if module]
    if not names:
        print(engine.NOT_HERE)
        return
    explore(
        {
            "precision": Choice("precision (data.model)", {name: name for name in names}, names[-1]),
            "accumulators": Choice("accumulators", TYPES, torch.float16),
            "first": Choice("first moments", TYPES, torch.float16),
            "second": Choice("second moments", TYPES, torch.float32),
            "half_partials": Choice("partial sums", HALF_PARTIALS, False),
        },
        partial(precision_view, captured),
    )


def precision_view(
    captured: Captured,
    precision: str,
    accumulators: torch.dtype,
    first: torch.dtype,
    second: torch.dtype,
    half_partials: bool,
) -> View:
    """The memory and rate of one setting."""
    module = captured.get(precision)
    if not module:
        return View(text=engine.NOT_HERE)
    typed = module.with_state_types(accumulators, first, second)
    profile = typed.profile(host=ladder.host(), half_partials=half_partials)
    epoch = ladder.epoch_seconds(profile)
    row = {
        **memory_cells(profile),
        "images a second, IPUs alone": f"{profile.device_samples_per_second:,.0f}",
        "epoch, with the host": "-" if epoch is None else f"{epoch:.1f} s",
    }
    text = FP16_MOMENTS if second is torch.float16 else f"Modelled. {_limit(profile)}"
    shown = {precision: profile}
    return View(memory_figure(shown), description=memory_words(shown), rows=[row], text=text)


def _limit(profile: Profile) -> str:
    return f"What limits this program: {profile.limited_by if engine.may_run(profile) else 'memory'}."
