"""The form of a lesson in numbers and names: everything that the lint measures against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """So many at least, so many at most."""

    least: int
    most: int

    def complaint(self, count: int, what: str) -> list[str]:
        """Return one finding if `count` is outside, else none."""
        return [] if self.least <= count <= self.most else [f"{count} {what}, not {self.least} to {self.most}"]


PART_TWO = tuple(f"{number}" for number in range(11, 18))
CELLS = Range(20, 35)
# Lesson 06 covers all of a tutorial, with four exercises and two predictions in cells of their own. Part two has as
# many exercises and predictions; lesson 11 has the quiz of part two besides.
MORE_CELLS = {**dict.fromkeys(PART_TWO, Range(20, 39)), "06": Range(20, 43), "11": Range(20, 42)}
# In the markdown cells, without folded solutions and references.
WORDS = Range(800, 1500)
# Lesson 06 and part two have more to tell than the others.
LONGER = dict.fromkeys(("06", *PART_TWO), Range(800, 2500))
EXERCISES = Range(2, 5)
LEAST_EXERCISE_SHARE = 0.4
MOST_CODE_LINES = 15
LEAST_ALT_WORDS = 10
LAST_SECTIONS = ("Summary", "On real hardware", "What transfers", "References")
