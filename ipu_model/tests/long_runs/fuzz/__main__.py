"""Try random programs for some seconds of this process's time: `make fuzz`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.cases import Case
from fuzz.drawing import cases
from fuzz.trial import FAULT, REFUSED, RIGHT, Outcome, run, template

_AT_ONCE = 200


def main() -> int:
    """Try programs, print what came of them, and return 1 if there was a fault."""
    parser = argparse.ArgumentParser(description="try random PopTorch programs against plain PyTorch")
    parser.add_argument("--seconds", type=float, default=60, help="processor time to spend (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    outcomes: list[tuple[Case, Outcome]] = []
    number = arguments.seed
    while time.process_time() < arguments.seconds:
        _try_some(number, arguments.seconds, outcomes)
        number += 1
    report(outcomes)
    return int(any(outcome.kind == FAULT for _, outcome in outcomes))


def _try_some(number: int, seconds: float, outcomes: list[tuple[Case, Outcome]]) -> None:
    @seed(number)
    @settings(
        max_examples=_AT_ONCE,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def attempt(case: Case) -> None:
        if time.process_time() < seconds:
            outcome = run(case)
            outcomes.append((case, outcome))
            if outcome.kind == FAULT:
                print(f"FAULT {outcome.text}\n  {case}", flush=True)

    attempt()


def report(outcomes: list[tuple[Case, Outcome]]) -> None:
    """Print how many inputs were tried and what came of them, errors by their words."""
    kinds = Counter(outcome.kind for _, outcome in outcomes)
    print(f"programs tried  {len(outcomes)}  ({len({case for case, _ in outcomes})} different)")
    for kind in (RIGHT, REFUSED, FAULT):
        print(f"{kind:<14}  {kinds[kind]}")
    print("interrupts and other actions between calls: ", end="")
    print(", ".join(f"{name} {count}" for name, count in Counter(case.action for case, _ in outcomes).most_common()))
    words = Counter(template(outcome.text) for _, outcome in outcomes if outcome.kind == REFUSED)
    for text, count in words.most_common():
        print(f"{count:>7}  {text}")


if __name__ == "__main__":
    sys.exit(main())
