"""What the model says of every plan, as a file of the lesson stores it; ``every_plan`` writes that file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Sequence

from ipu_course import engine
from ipu_course.errors import DataError
from ipu_course.lessons.capstone.plans import Plan
from ipu_course.lessons.capstone.transformer import TransformerSize

FITS = "fits"
# What a plan keeps free of each IPU's fullest tile, as make_it_fit's plans do.
MARGIN = 0.05
TILE_BYTES = 624 * 1024
COMMAND = "python -m ipu_course.lessons.capstone.every_plan"


@dataclass(frozen=True)
class PlanResult:
    """What the model says of one plan: bytes of each IPU's fullest tile, the verdict, sequences a second."""

    plan: Plan
    tile_bytes: tuple[float, ...]
    verdict: str
    sequences_per_second: float

    @property
    def fits(self) -> bool:
        """Whether it fits with room to spare: 5 % of every tile."""
        return self.verdict == FITS and has_room(max(self.tile_bytes))


@dataclass(frozen=True)
class SearchResult:
    """What ``make_it_fit`` finds for the program as it is, on at most four IPUs: its changes in words."""

    sequences_per_second: float
    changes: tuple[str, ...]
    programs: int


@dataclass(frozen=True)
class EveryPlan:
    """All plans of one size with their results, and what the search found.

    ``published_task`` is what the published configuration reaches on its own task, in sequences per second.
    """

    size: TransformerSize
    results: tuple[PlanResult, ...]
    search: SearchResult | None = None
    published_task: float | None = None

    @property
    def fitting(self) -> tuple[PlanResult, ...]:
        """The plans that fit with room to spare, the fastest first."""
        found = (each for each in self.results if each.fits)
        return tuple(sorted(found, key=lambda each: -each.sequences_per_second))

    @property
    def near_ties(self) -> tuple[PlanResult, ...]:
        """The fitting plans that are within the model's error of the best one, which is the first of them."""
        least = (1 - engine.largest_ratio_error()) * self.best.sequences_per_second
        return tuple(each for each in self.fitting if each.sequences_per_second >= least)

    @property
    def best(self) -> PlanResult:
        """The fastest plan that fits with room to spare."""
        return self.fitting[0]


def has_room(max_tile_bytes: float) -> bool:
    """Tell whether the fullest tile keeps ``MARGIN`` of its memory free."""
    return max_tile_bytes <= (1 - MARGIN) * TILE_BYTES


def file_of(size: TransformerSize) -> Path:
    """Return the file with the stored results of a size."""
    return Path(__file__).with_name(f"plans_{size.name}.json")


@engine.needs_the_model
def all_plans(size: TransformerSize) -> EveryPlan:
    """Return the stored results of a size, or ``NOT_MODELLED`` without an IPU Model."""
    return stored_plans(size)


@lru_cache(maxsize=2)
def stored_plans(size: TransformerSize) -> EveryPlan:
    """Read the stored results of a size.

    Raises ``DataError`` when the file is missing or damaged.
    """
    try:
        content = json.loads(file_of(size).read_text(encoding="utf-8"))
        return EveryPlan(
            size, tuple(map(_read, content["plans"])), _read_search(content["search"]), content["published_task"]
        )
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise DataError(f"{file_of(size).name} is damaged ({problem}). Write it again: {COMMAND} --write.") from problem


def _read(line: Sequence[Any]) -> PlanResult:
    layers, *decisions, tiles, verdict, rate = line
    return PlanResult(Plan(tuple(layers), *decisions), tuple(tiles), str(verdict), float(rate))


def _read_search(line: Sequence[Any] | None) -> SearchResult | None:
    return None if line is None else SearchResult(float(line[0]), tuple(line[1]), int(line[2]))
