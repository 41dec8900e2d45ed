"""Every cut of lesson 14's program B over four IPUs: ``python -m ipu_course.lessons.reading_a_profile.all_cuts``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, Iterator

from ipu_course import engine
from ipu_course.lessons.reading_a_profile.bottleneck_words import limit_of
from ipu_course.lessons.reading_a_profile.slow_programs import LAYERS, Place, begin, begin_projection, sentences

FURTHER_IPUS = 3
SHOWN = 10


@dataclass(frozen=True)
class CutOfB:
    """Where IPUs 1, 2 and 3 begin (12 is the projection), the sentences a second, and what limits the program."""

    begins: tuple[int, ...]
    rate: float
    limit: str


def place_at(begins: tuple[int, ...]) -> Place:
    """Return the function that lets IPUs 1, 2 and 3 begin there."""

    def place(model: Any) -> None:
        for ipu, layer in enumerate(begins, 1):
            if layer == LAYERS:
                begin_projection(model, ipu)
            else:
                begin(model, layer, ipu)

    return place


def cuts() -> Iterator[CutOfB]:
    """Yield every cut that fits."""
    for begins in combinations(range(1, LAYERS + 1), FURTHER_IPUS):
        profile = sentences(place_at(begins)).profile()
        if profile.verdict.value == "fits":
            yield CutOfB(begins, profile.samples_per_second, limit_of(profile))


def main() -> None:
    """Print the fastest cuts; this takes some minutes."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    found = sorted(cuts(), key=lambda cut: -cut.rate)
    print(f"{len(found)} cuts fit; the fastest, modelled:")
    for cut in found[:SHOWN]:
        print(f"  IPUs begin at {cut.begins}: {cut.rate:,.0f} sentences/s, limited by {cut.limit}")


if __name__ == "__main__":
    main()
