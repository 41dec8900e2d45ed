"""One piece of advice: a change to a program, and what the IPU Model says it would do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """A change that was modelled.

    `change` says what to change in a few words, `how` the line of code that does it. The change makes
    end-to-end samples per second `samples_per_second_factor` times what they were, and the fullest tile
    `max_tile_bytes_change` bytes fuller; `fits` is the verdict on memory after it. `explanation` tells why.
    """

    change: str
    how: str
    samples_per_second_factor: float
    max_tile_bytes_change: float
    fits: bool
    explanation: str
