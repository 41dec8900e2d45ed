"""Published cycles of single lookups and scatter-adds, beside the model.

`message_passing.csv` has them for tables of random indices in fp32 on one Bow IPU (graphcore-research/hydronet-gnn,
`experiments/`): `inputs` rows of `features` elements, of which `outputs` are picked, or which are added to `outputs`
rows; with PopLibs' memory proportion and with 0.1. Each op ran 128 times in a `poptorch.for_loop`, and the cycles are
those of one time with what the loop adds. At 0.1 almost all take 320 to 350 cycles less, whatever their size, so this
is no matter of the plan; the model has no such difference, and its constants were fitted to both.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ipu_model.predict.calibration import Calibration, calibrated
from ipu_model.predict.device import DEFAULT_PROPORTION, Device, Element
from ipu_model.predict.hardware import chip
from ipu_model.predict.ops.indexing import added, gather, scatter
from published.leave_one_out import STEP

Errors = NDArray[np.float64]
_FILE = Path(__file__).with_name("message_passing.csv")

# Op -> what it is called, and the constants that were fitted to its cycles.
OPS = {
    "gather": ("lookups (gather)", ("cost.gather_fixed_cycles", "cost.gather_second_stage_cycles")),
    "scatter_add": ("scatter-adds", ("cost.update_scan_cycles",)),
}


@dataclass(frozen=True)
class Count:
    """The published cycles of one op of one size."""

    op: str
    inputs: int
    features: int
    outputs: int
    proportion: float
    cycles: float

    def modelled(self, calibration: Calibration) -> float:
        device, element = Device(chip("Bow"), calibration), Element.FLOAT
        if self.op == "gather":
            work = gather(device, self.inputs, self.features, self.outputs, element, self.proportion)
            return device.total(work.cycles)
        work = scatter(device, self.outputs, self.features, self.inputs, element, self.proportion)
        return device.total(work.cycles + added(device, self.outputs * self.features, element))


@lru_cache(maxsize=1)
def counts() -> tuple[Count, ...]:
    """Return the counts in the order of their sizes, both proportions of a size one after the other."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return tuple(
        Count(op, int(inputs), int(features), int(outputs), proportion, float(cycles))
        for op, inputs, features, outputs, *both in rows
        for proportion, cycles in zip((DEFAULT_PROPORTION, 0.1), both, strict=True)
    )


def errors(op: str, calibration: Calibration | None = None) -> Errors:
    """Return the signed relative errors of all counts of an op."""
    calibration = calibration or calibrated()
    return np.array([count.modelled(calibration) / count.cycles - 1 for count in counts() if count.op == op])


def left_out(op: str, found: Errors) -> Errors:
    """Return what the errors `found` would be had the constants been fitted to every other size, each half in turn.

    As in `leave_one_out`, one least-squares step on relative errors does.
    """
    slopes = []
    for name in OPS[op][1]:
        section, constant = name.split(".")
        value = getattr(getattr(calibrated(), section), constant)
        slopes.append((errors(op, calibrated().with_values({name: value * (1 + STEP)})) - found) / STEP)
    slope, halves = np.stack(slopes, axis=1), np.arange(len(found)) // 2 % 2
    without: Errors = found.copy()
    for half in (0, 1):
        rest, own = halves != half, halves == half
        without[own] += slope[own] @ np.linalg.lstsq(slope[rest], -found[rest], rcond=None)[0]
    return without


def message_passing_lines() -> list[str]:
    """Return one line for each op: how far the model is off, and how far with half of the sizes left out."""
    lines = []
    for op, (name, constants) in OPS.items():
        found = errors(op)
        lines.append(
            f"{len(found)} published cycles of {name} in fp32, fitted with {len(constants)} of the constants: off by "
            f"{_spread(found)}; with the constants fitted to every other size and scored on the rest, by "
            f"{_spread(left_out(op, found))}."
        )
    return lines


def _spread(found: Errors) -> str:
    sizes = np.abs(found)
    return (
        f"{median(sizes):.1%} at the median, {np.quantile(sizes, 0.9):.0%} for nine of ten, {sizes.max():.0%} at worst"
    )
