"""Where an op runs: the block it was written in, its pipeline stage (or phase) and its IPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Block id, stage number and IPU index of an op; `phase` only for phased execution."""

    block: str
    stage: int
    ipu: int
    phase: int | None = None
