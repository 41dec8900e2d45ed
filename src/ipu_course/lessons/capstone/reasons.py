"""What a reason in the capstone's report needs: it is a sentence, and it names a figure."""

from __future__ import annotations

from typing import Mapping

FEWEST_WORDS = 6
# The decisions that the report explains: their keys, and how the report heads them.
DECIDED: Mapping[str, str] = {
    "split": "Layers of the four IPUs",
    "head": "Place of the head",
    "micro-batch": "Micro-batch and accumulation",
    "recomputation": "Checkpoints",
    "state": "Place of the optimiser state",
    "proportion": "Available memory proportion",
    "loader": "The CNN's loader",
}


def weak_reason(name: str, reason: object) -> str | None:
    """Return what a reason lacks, or ``None``."""
    if not isinstance(reason, str):
        return f"The reason for {name!r} is a text; you wrote {reason!r}."
    if len(reason.split()) < FEWEST_WORDS:
        return f"The reason for {name!r} is too short: write a sentence of at least {FEWEST_WORDS} words."
    if not any(letter.isdigit() for letter in reason):
        return f"The reason for {name!r} has no figure. What did you see: KiB, sequences/s, a percentage?"
    return None
