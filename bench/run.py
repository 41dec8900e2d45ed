"""Print the speed of the IPU Model as ratios, all measured in one run: `make bench`.

Every ratio compares two things on this machine, interleaved, as medians; nothing here decides a build.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from measurements import capture, half, loading, step


@dataclass(frozen=True)
class Row:
    """One measured figure beside the budget it is meant to keep."""

    what: str
    measured: str
    budget: str


def interleaved(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each action, run in turns so that a busy machine slows all of them alike."""
    for action in actions.values():
        action()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved repetitions of each step (default 15)")
    arguments = parser.parse_args()
    print(f"measured on {torch.get_num_threads()} threads, torch {torch.__version__}")
    for measure in (step.rows, half.rows, capture.rows, loading.rows):
        for row in measure(interleaved, arguments.rounds):
            print(f"{row[0]:<66} {row[1]:>9}   budget {row[2]}")


if __name__ == "__main__":
    main()
