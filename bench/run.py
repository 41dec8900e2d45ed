"""Print the speed of the IPU Model as ratios, all measured in one run: `make bench`.

Every ratio compares two things on this machine, run in turns, as medians; nothing here decides a build.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from measurements import capturing, importing, loading, modelling, sharing, stepping
from measurements.timing import Row

MEASUREMENTS: dict[str, Callable[[int], list[Row]]] = {
    "stepping": stepping.rows,
    "capturing": capturing.rows,
    "modelling": modelling.rows,
    "importing": importing.rows,
    "loading": loading.rows,
    "sharing": sharing.rows,
}


def main() -> None:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(description="measure the IPU Model against plain PyTorch on this machine")
    parser.add_argument("--rounds", type=int, default=15, help="repetitions of each step (default 15)")
    parser.add_argument("--only", choices=MEASUREMENTS, metavar="PART", help=f"one of {', '.join(MEASUREMENTS)}")
    arguments = parser.parse_args()
    print(f"measured on this machine: {torch.get_num_threads()} threads, torch {torch.__version__}")
    for name, measure in MEASUREMENTS.items():
        if arguments.only in (None, name):
            for row in measure(arguments.rounds):
                show(row)


def show(row: Row) -> None:
    """Print one line of the table."""
    verdict = "" if row.within is None else ("  within" if row.within else "  OVER")
    print(f"{row.what:<84} {row.figure:>9}  {row.budget}{verdict}", flush=True)


if __name__ == "__main__":
    main()
