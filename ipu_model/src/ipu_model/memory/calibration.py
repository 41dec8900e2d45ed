"""The constants of the memory model that no document gives directly: section `memory` of `data/calibration.toml`."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.constants import Section, values


@dataclass(frozen=True)
class Constants(Section):
    """One attribute for each entry of the section `memory` of `data/calibration.toml`, which explains them."""

    exchange_code_bytes_per_phase: float
    control_code_bytes_per_compute_set: float
    vertex_state_bytes_per_compute_set: float
    vertex_code_bytes_per_kind: float
    host_exchange_bytes_per_tensor: float
    global_exchange_bytes_per_transfer: float
    uncertainty: float
    refusal_margin: float
    code_uncertainty: float
    published_code_bytes: float


def calibrated() -> Constants:
    """Return the constants of `data/calibration.toml`."""
    return values("memory", Constants)
