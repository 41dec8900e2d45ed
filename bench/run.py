"""Print the speed of the IPU Model as ratios, all measured in one run: `make bench`.

Every ratio compares two things on this machine, run in turns, as medians; nothing here decides a build.
"""

from __future__ import annotations

import argparse

import torch
from measurements import capturing, importing, loading, modelling, stepping
from measurements.timing import Row


def main() -> None:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(description="measure the IPU Model against plain PyTorch on this machine")
    parser.add_argument("--rounds", type=int, default=15, help="repetitions of each step (default 15)")
    rounds = parser.parse_args().rounds
    print(f"measured on this machine: {torch.get_num_threads()} threads, torch {torch.__version__}")
    for measure in (stepping.rows, capturing.rows, modelling.rows, importing.rows, loading.rows):
        for row in measure(rounds):
            show(row)


def show(row: Row) -> None:
    """Print one line of the table."""
    verdict = "" if row.within is None else ("  within" if row.within else "  OVER")
    print(f"{row.what:<74} {row.figure:>9}  {row.budget}{verdict}", flush=True)


if __name__ == "__main__":
    main()
