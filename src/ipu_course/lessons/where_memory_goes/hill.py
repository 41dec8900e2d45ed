"""The hill of the learner's network, beside what the learner counted by hand."""

from __future__ import annotations

from typing import Callable

from torch import Tensor, nn

from ipu_course import engine, show
from ipu_course.figures.floor_and_hill import floor_and_hill
from ipu_course.lessons.where_memory_goes.by_hand import TILES, counted_by, kept_for_backward
from ipu_course.tile_over_time import KIB, Hill


def kept_on_each_tile(count: Callable[[nn.Module, Tensor], float], network: nn.Module, images: Tensor) -> float:
    """Print and return the KiB of kept activations on each tile, spread evenly.

    ``count`` is the learner's function; as long as it is open, the course's counts.
    """
    counted = counted_by(count, kept_for_backward)
    kib = float(counted.function(network, images)) / TILES / KIB
    print(f"kept activations, counted by {counted.by} and spread evenly: {kib:.1f} KiB on each tile")
    return kib


def show_hill(hill: Hill, by_hand_kib: float) -> None:
    """Show the fullest tile over a training step; ``by_hand_kib`` are the kept activations counted by hand."""
    if hill is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    peak = hill.peak
    show.figure(
        floor_and_hill(hill, by_hand_kib),
        "The floor decides how much room there is, and one spike on the hill decides whether it fits.",
        f"KiB of the fullest tile over {len(hill.live)} steps, modelled. Always live: {hill.floor:.0f}, of them "
        f"{hill.weights:.0f} weights, {hill.state:.0f} state and accumulators, {hill.code:.0f} code. Results rise "
        f"to {hill.after_forward:.1f} at the end of the forward pass, where {by_hand_kib:.1f} were counted by hand, "
        f"and fall in the backward pass. The peak is {hill.floor + hill.height:.0f} of {hill.limit:.0f} KiB, during "
        f"{hill.names[peak]} ({hill.phases[peak]}), with {hill.temporary[peak]:.0f} KiB of temporary data.",
    )
