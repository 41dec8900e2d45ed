"""The constants that cost formulas need and no document gives: section `cost` of `data/calibration.toml`."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.constants import Section, values


@dataclass(frozen=True)
class Constants(Section):
    """One attribute for each entry of the section `cost` of `data/calibration.toml`, which explains them."""

    sync_cycles: float
    exchange_fixed_cycles: float
    layout_copy_cycles_per_byte: float
    layout_copy_fixed_cycles: float
    weight_transpose_cycles_per_byte: float
    least_bytes_per_tile: float
    optimiser_fixed_cycles: float


def calibrated() -> Constants:
    """Return the constants of `data/calibration.toml`."""
    return values("cost", Constants)
