"""The bug hunt of lesson 10: which of four mistakes explains what each of three runs shows."""

from __future__ import annotations

import re

__all__ = ["RIGHT", "mistakes_hint"]

SHUFFLED, OWN_SEED, PLAIN_OPTIONS, NOT_PARTITIONED = LETTERS = "ABCD"
RIGHT = PLAIN_OPTIONS + NOT_PARTITIONED + OWN_SEED
# What the table shows for each of the three runs, and what follows from it.
REASONS = (
    "Mistake 1 halves the rows of an item, to the 8 x 2 of one replica. Which options do not know about two?",
    "With mistake 2, both instances load digits 0 to 1023. What should give each of them a part?",
    "With mistake 3 the instances end with different weights, and a broadcast of the first weights repairs it. What "
    "was different from the start?",
)
NO_SHUFFLE = "A shuffled loader would not give the first digit first and the last one last, and no run does that."


def mistakes_hint(mistakes: object) -> str | None:
    """Return the hint for three letters, written in one text or as a list, in the order of the table."""
    parts = [str(part) for part in mistakes] if isinstance(mistakes, (list, tuple)) else [mistakes]
    if not all(isinstance(part, str) for part in parts):
        return f'mistakes is a text with three letters, such as "A B C"; you wrote {mistakes!r}.'
    letters = re.sub(r"[\s,;.]", "", "".join(str(part) for part in parts)).upper()
    if len(letters) != len(RIGHT) or set(letters) - set(LETTERS):
        return f"mistakes needs three letters from A to D, one for each mistake; you wrote {mistakes!r}."
    for letter, right, reason in zip(letters, RIGHT, REASONS):
        if letter != right:
            return NO_SHUFFLE if letter == SHUFFLED else reason
    return None
