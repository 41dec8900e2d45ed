"""Train for a long time and watch memory, files, threads and processes: `make soak`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import torch

from soak.runs import programs, training_steps
from soak.usage import HEADING, Tolerance, Usage

# Heaps settle for some thousand steps; a leak of one tensor a step would be far more than this.
_STEPS = Tolerance(own_mib=8, loaders_mib=8)
# Compiling leaves a little in torch's own caches: the tolerance is for 200 programs.
_PROGRAMS = Tolerance(own_mib=24, loaders_mib=8)
_QUARTERS = 4


def main() -> int:
    """Do both runs, print what was held at each quarter, and return 1 if anything grew."""
    parser = argparse.ArgumentParser(description="train for a long time and see that nothing grows")
    parser.add_argument("--steps", type=int, default=10_000, help="training steps of one model (default 10000)")
    parser.add_argument("--programs", type=int, default=200, help="models and loaders made in turn (default 200)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        *_watch(f"{arguments.steps} training steps with asynchronous loading",
                training_steps(arguments.steps, _QUARTERS), _STEPS),
        *_watch(f"{arguments.programs} programs, each with a model and a loader",
                programs(arguments.programs, _QUARTERS), _PROGRAMS),
    ]  # fmt: skip
    print("grew: " + "; ".join(found) if found else "nothing grew beyond the tolerance")
    return int(bool(found))


def _watch(what: str, run: Iterator[Usage], tolerance: Tolerance) -> list[str]:
    print(f"{what} (may grow by {tolerance.own_mib} MiB here, {tolerance.loaders_mib} MiB in loaders)")
    print(HEADING)
    seen = []
    for usage in run:
        print(usage, flush=True)
        seen.append(usage)
    return tolerance.complaints(seen[0], seen[-1])


if __name__ == "__main__":
    sys.exit(main())
