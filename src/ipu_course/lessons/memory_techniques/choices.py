"""Choices among lesson 12's techniques: what each does to memory and throughput, modelled, and stored for all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple

from ipu_course import engine
from ipu_course.lesson_data import read_table
from ipu_course.lessons.memory_techniques.language_model import BLOCKS, captured_with, quick_gelu
from ipu_course.lessons.memory_techniques.own_activation import courses_activation

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

KIB = 1024
FITS = "fits"
FILE = Path(__file__).with_name("every_choice.json")

# The results inside a block that a checkpoint may keep, by the module of the block that makes each.
POINTS: Mapping[str, str] = {
    "first norm": "attention.norm",
    "queries, keys, values": "attention.qkv",
    "attention weights": "attention.weights",
    "mixed values": "attention.mix",
    "sum after attention": "attention",
    "second norm": "feed.norm",
    "wide layer": "feed.up",
    "activation": "feed.activation",
}
SLICES_OF_SETS = 8  # the program whose checkpoints are chosen: its last product runs in slices
SLICES, PROPORTIONS = (0, 4, 8), (None, 0.2, 0.1)


@dataclass(frozen=True)
class TechniqueChoice:
    """Which techniques a program uses; the plain program uses none.

    ``slices`` cuts the last product (0: not at all), ``proportion`` is that of available memory (``None``: default),
    ``kept`` names the ``POINTS`` that checkpoints keep inside each block (``None``: no recomputation), ``off_chip``
    moves the optimiser's state, and ``own_op`` makes the activation one operation.
    """

    slices: int = 0
    proportion: float | None = None
    half_partials: bool = False
    kept: tuple[str, ...] | None = None
    off_chip: bool = False
    own_op: bool = False


class ChoiceOutcome(NamedTuple):
    """What a choice gives: KiB on the fullest tile, samples a second, and the model's verdict on memory."""

    choice: TechniqueChoice
    kib: float
    rate: float
    verdict: str


class EveryChoice(NamedTuple):
    """The stored outcomes: of all sets of checkpoints, and of all combinations of techniques."""

    sets: tuple[ChoiceOutcome, ...]
    combinations: tuple[ChoiceOutcome, ...]


def every_set() -> Iterator[TechniqueChoice]:
    """Yield all 256 sets of checkpoints inside a block, the same in each block."""
    for count in range(len(POINTS) + 1):
        for kept in combinations(POINTS, count):
            yield TechniqueChoice(slices=SLICES_OF_SETS, kept=kept)


def every_combination(best_set: tuple[str, ...]) -> Iterator[TechniqueChoice]:
    """Yield all combinations of techniques; those that recompute keep the ends of blocks, or ``best_set``, too."""
    for own_op in (False, True):
        for slices in SLICES:
            for proportion in PROPORTIONS:
                for half_partials in (False, True):
                    for kept in (None, (), best_set):
                        for off_chip in (False, True):
                            yield TechniqueChoice(slices, proportion, half_partials, kept, off_chip, own_op)


def captured(slices: int = 0, own_op: bool = False) -> ModelledModule:
    """Return the lesson's program, which is captured once for each form of its network."""
    return captured_with(slices, courses_activation() if own_op else quick_gelu)


def profile_of(choice: TechniqueChoice) -> Profile:
    """Return the modelled profile of a choice."""
    options: dict[str, Any] = {"half_partials": choice.half_partials, "optimiser_off_chip": choice.off_chip}
    if choice.proportion is not None:
        options["available_memory_proportion"] = choice.proportion
    if choice.kept is not None:
        options.update(recomputation="all", checkpoints=checkpoint_modules(choice.kept))
    return captured(choice.slices, choice.own_op).profile(**options)


def checkpoint_modules(kept: tuple[str, ...]) -> list[str]:
    """Return the modules whose results are kept: those inside each block, and what each begins and ends with."""
    ends = ["embedded", *(f"blocks.{block}" for block in range(BLOCKS))]
    return [*ends, *(f"blocks.{block}.{POINTS[point]}" for block in range(BLOCKS) for point in kept)]


def outcome_of(choice: TechniqueChoice) -> ChoiceOutcome:
    """Model a choice."""
    profile = profile_of(choice)
    return ChoiceOutcome(choice, round(fullest_kib(profile), 1), round(profile.samples_per_second, 1),
                         engine.memory_verdict(profile))  # fmt: skip


def fullest_kib(profile: Profile) -> float:
    """Return what the fullest tile of all IPUs holds, in KiB."""
    return float(profile.memory.max_tile_bytes) / KIB


def fastest_that_fits(outcomes: tuple[ChoiceOutcome, ...]) -> ChoiceOutcome:
    """Return the outcome with the highest throughput among those whose verdict is "fits"."""
    return max((each for each in outcomes if each.verdict == FITS), key=lambda each: each.rate)


def written(every: EveryChoice) -> str:
    """Return the outcomes as the text of the file, one to a line."""
    parts = {name: ",\n  ".join(_line(each) for each in outcomes) for name, outcomes in every._asdict().items()}
    return "{\n" + ",\n".join(f' "{name}": [\n  {lines}\n ]' for name, lines in parts.items()) + "\n}\n"


def _line(outcome: ChoiceOutcome) -> str:
    return json.dumps(
        {**asdict(outcome.choice), **{name: getattr(outcome, name) for name in ("kib", "rate", "verdict")}}
    )


@lru_cache(maxsize=1)
def stored() -> EveryChoice:
    """Return the outcomes that ``every_choice`` has stored."""
    content: Any = read_table(FILE)
    return EveryChoice(*(tuple(map(_outcome, content[name])) for name in EveryChoice._fields))


def _outcome(entry: dict[str, Any]) -> ChoiceOutcome:
    kib, rate, verdict = (entry.pop(name) for name in ("kib", "rate", "verdict"))
    kept = entry.pop("kept")
    return ChoiceOutcome(TechniqueChoice(**entry, kept=None if kept is None else tuple(kept)), kib, rate, verdict)
