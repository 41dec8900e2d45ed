"""The capstone's program before any plan: what it needs, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ipu_course import engine, show
from ipu_course.lessons.capstone.budget import KIB
from ipu_course.lessons.capstone.plans import MACHINE, as_it_is
from ipu_course.lessons.capstone.transformer import Transformer
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.lessons.capstone.transformer import TransformerSize

BYTES_EACH = 4 + 4 + 2 * 4  # a float32 weight, its accumulator and LAMB's two moments
TILES, TILE_BYTES = 1_472, 624 * KIB


def parameters(size: TransformerSize) -> int:
    """Return the number of weights; the head shares those of the embedding."""
    with torch.device("meta"):
        return sum(each.numel() for each in Transformer(size).parameters())


def ipus_for_weights(size: TransformerSize) -> float:
    """Return how many IPUs weights, accumulators and LAMB's state fill in float32, by hand."""
    return parameters(size) * BYTES_EACH / (TILES * TILE_BYTES)


@engine.needs_the_model
def profile_as_it_is(size: TransformerSize) -> Profile:
    """Return the profile of the program before any plan."""
    model, inputs, options, optimiser = as_it_is(size)
    return engine.modelled_module(model, inputs, options, optimiser).profile(machine=MACHINE)


def show_as_it_is(size: TransformerSize) -> None:
    """Show what the program before any plan needs."""
    profile = profile_as_it_is(size)
    if profile is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    show.table([{
        "program": f"BERT-{size.name} as it is: float32, one IPU",
        "weights": f"{parameters(size) / 1e6:.0f} million",
        "they and their state fill": f"{ipus_for_weights(size):.1f} IPUs",
        "fullest tile needs (modelled)": f"{profile.memory.max_tile_bytes / KIB:,.0f} KiB",
        "of": f"{profile.memory.tile_bytes / KIB:,.0f} KiB",
        "sequences/s, if it fitted (modelled)": f"{profile.samples_per_second:,.0f}",
    }], index="program")  # fmt: skip
