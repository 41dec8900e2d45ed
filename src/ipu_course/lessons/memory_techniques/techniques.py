"""Each technique alone on lesson 12's program: what it saves, what it costs, and what it lowers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Callable

from ipu_course import engine, show
from ipu_course.lessons.memory_techniques.choices import FITS, TechniqueChoice, captured, fullest_kib, profile_of
from ipu_course.lessons.memory_techniques.language_model import (
    ACCUMULATION,
    MICRO_BATCH,
    LanguageModel,
    modelled_training,
)

if TYPE_CHECKING:
    from ipu_course.engine import Profile

REPLICAS = 4
SECOND_IPU = "blocks.4"
SPIKE, HILL, FLOOR, BOTH, ALL = "spike", "hill", "floor", "spike, hill", "all"


@dataclass(frozen=True)
class Technique:
    """One technique: what of the fullest tile it ``lowers``, what ``also`` changes, and its program's profile."""

    name: str
    lowers: str
    also: str
    profile: Callable[[], Profile]


def _half_batch() -> Profile:
    half = modelled_training(LanguageModel, micro_batch=MICRO_BATCH // 2)
    return half.profile(gradient_accumulation=2 * ACCUMULATION)


PLAIN = Technique("no technique", "", "", lambda: profile_of(TechniqueChoice()))
ALONE = (
    Technique("proportion 0.2", SPIKE, "nothing", lambda: profile_of(TechniqueChoice(proportion=0.2))),
    Technique("half partials", SPIKE, "rounding", lambda: profile_of(TechniqueChoice(half_partials=True))),
    Technique("last product in 8 slices", SPIKE, "nothing", lambda: profile_of(TechniqueChoice(slices=8))),
    Technique("recomputation from block ends", HILL, "nothing", lambda: profile_of(TechniqueChoice(kept=()))),
    Technique("activation as one operation", HILL, "code of your own",
              lambda: profile_of(TechniqueChoice(own_op=True))),
    Technique("half the micro-batch", BOTH, "twice the accumulation", _half_batch),
    Technique("state off the chip", FLOOR, "nothing", lambda: profile_of(TechniqueChoice(off_chip=True))),
    Technique("state shared by 4 replicas", FLOOR, f"{REPLICAS} IPUs, {REPLICAS} times the batch",
              lambda: captured().profile(replicas=REPLICAS, optimiser_sharded=True)),
)  # fmt: skip
TWO_IPUS = Technique("pipeline over 2 IPUs", ALL, "2 IPUs", lambda: captured().profile(split=[SECOND_IPU]))


@lru_cache(maxsize=32)
def modelled(technique: Technique) -> Profile:
    """Return the profile of a technique's program, modelled once."""
    return technique.profile()


@engine.needs_the_model
def plain_program() -> Profile:
    """Return the profile of the program without any technique."""
    return modelled(PLAIN)


@engine.needs_the_model
def fit_alone() -> int:
    """Return how many of the eight techniques alone make the program fit."""
    return sum(engine.memory_verdict(modelled(each)) == FITS for each in ALONE)


def rate_per_ipu(profile: Profile) -> float:
    """Return the samples a second of each IPU."""
    return profile.samples_per_second / (profile.replicas * len(profile.memory))


def show_alone() -> None:
    """Show what each technique alone saves and costs, beside the program without any."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    plain = modelled(PLAIN)
    rows: list[dict[str, object]] = []
    for technique in (PLAIN, *ALONE, TWO_IPUS):
        profile = modelled(technique)
        rate, saved = rate_per_ipu(profile), fullest_kib(plain) - fullest_kib(profile)
        rows.append(
            {
                "technique (modelled)": technique.name,
                "lowers": technique.lowers,
                "fullest tile": f"{fullest_kib(profile):.0f} KiB",
                "saves": "" if technique is PLAIN else f"{saved:.0f} KiB",
                "samples/s for each IPU": f"{rate:,.0f}",
                "time for a sample": "" if technique is PLAIN else f"{rate_per_ipu(plain) / rate - 1:+.0%}",
                "also changes": technique.also,
                "fits": engine.fits_in_a_word(profile),
            }
        )
    show.table(rows, index="technique (modelled)")
