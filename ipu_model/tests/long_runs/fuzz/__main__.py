"""Try random programs for some seconds of this process's time: `make fuzz`."""

from __future__ import annotations

import argparse
import logging
import re
import sys
import time
import warnings
from collections import Counter

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.cases import Case, cases
from fuzz.trial import FAULT, REFUSED, RIGHT, Outcome, run

_AT_ONCE = 200


def main() -> int:
    parser = argparse.ArgumentParser(description="try random PopTorch programs against plain PyTorch")
    parser.add_argument("--seconds", type=float, default=60, help="processor time to spend (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    outcomes: list[tuple[Case, Outcome]] = []

    every = list(HealthCheck)

    @settings(max_examples=_AT_ONCE, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=every)
    @given(cases())
    def attempt(case: Case) -> None:
        if time.process_time() < arguments.seconds:
            outcomes.append((case, run(case)))
            if outcomes[-1][1].kind == FAULT:
                print(f"FAULT {outcomes[-1][1].text}\n  {case}", flush=True)

    number = arguments.seed
    while time.process_time() < arguments.seconds:
        seed(number)(attempt)()
        number += 1
    _report(outcomes)
    return int(any(outcome.kind == FAULT for _, outcome in outcomes))


def _report(outcomes: list[tuple[Case, Outcome]]) -> None:
    """Print how many inputs were tried and what came of them, errors by their words without numbers and names."""
    kinds = Counter(outcome.kind for _, outcome in outcomes)
    actions = Counter(case.action for case, _ in outcomes)
    print(f"programs tried  {len(outcomes)}  ({len({case for case, _ in outcomes})} different)")
    for kind in (RIGHT, REFUSED, FAULT):
        print(f"{kind:<14}  {kinds[kind]}")
    print("between calls: " + ", ".join(f"{name} {count}" for name, count in actions.most_common()))
    refusals = (outcome.text.splitlines()[0] for _, outcome in outcomes if outcome.kind == REFUSED)
    words = Counter(re.sub(r"'[^']*'|\[[^\]]*\]|\d+", "*", text)[:110] for text in refusals)
    for text, count in words.most_common():
        print(f"{count:>7}  {text}")


if __name__ == "__main__":
    sys.exit(main())
