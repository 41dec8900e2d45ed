"""Rules of pipelines that hold before anything runs: how many stages there are, how many micro-batches they need."""

from __future__ import annotations

from collections.abc import Iterable

from ipu_model.step import Placement


def forward_stages(entries: Iterable[Placement]) -> int:
    """Count forward pipeline stages: one, plus one for every block entry on another IPU than the one before.

    The IPU before the first entry is IPU 0, so a first block on IPU 1 already counts.
    """
    stages, previous = 1, 0
    for entry in entries:
        if entry.ipu != previous:
            stages += 1
            previous = entry.ipu
    return stages


def training_stages(forward: int) -> int:
    """Return the pipeline stages of a training step: backward mirrors forward, the last one is shared (2 N - 1)."""
    return 2 * forward - 1
