"""``python -m ipu_course.lessons.memory_techniques.every_choice``: model every choice of lesson 12, and store it.

It models all 256 sets of checkpoints inside a block, then all combinations of techniques, and writes both to
``every_choice.json``. It takes about a minute on two cores. ``--check`` compares with the file instead of writing
it.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Iterable, Sequence

from ipu_course import engine
from ipu_course.lessons.memory_techniques.choices import (
    FILE,
    ChoiceOutcome,
    EveryChoice,
    TechniqueChoice,
    every_combination,
    every_set,
    fastest_that_fits,
    outcome_of,
    written,
)

PROCESSES = 2


def enumerate_choices(processes: int = PROCESSES) -> EveryChoice:
    """Model every set of checkpoints, and every combination with the best of them."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        sets = _modelled(pool, every_set())
        best = fastest_that_fits(sets).choice.kept or ()
        return EveryChoice(sets, _modelled(pool, every_combination(best)))


def _modelled(pool: ProcessPoolExecutor, choices: Iterable[TechniqueChoice]) -> tuple[ChoiceOutcome, ...]:
    # In chunks, because neighbours share a captured network.
    return tuple(pool.map(outcome_of, choices, chunksize=18))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code: 1 where ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m ipu_course.lessons.memory_techniques.every_choice",
                                     description=(__doc__ or "").partition(": ")[2])  # fmt: skip
    parser.add_argument("--check", action="store_true", help="compare with the stored file instead of writing it")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes that model at the same time")
    chosen = parser.parse_args(arguments)
    if not engine.is_available():
        print(engine.NOT_HERE)
        return 1
    every = enumerate_choices(chosen.processes)
    for name, outcomes in every._asdict().items():
        best = fastest_that_fits(outcomes)
        print(f"{name}: {len(outcomes)} modelled; the fastest that fits has {best.rate:,.0f} samples/s, "
              f"{best.kib:.0f} KiB: {best.choice}")  # fmt: skip
    text = written(every)
    if chosen.check:
        same = FILE.read_text(encoding="utf-8") == text
        print(f"{FILE.name} holds {'the same' if same else 'something else'}")
        return 0 if same else 1
    FILE.write_text(text, encoding="utf-8")
    print(f"written: {FILE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
