"""How long Graphcore's compiler would take: a straight line through published compilations."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.constants import Section, values
from ipu_model.predict.costs import Costs
from ipu_model.program import Program
from ipu_model.step import Phase


@dataclass(frozen=True)
class CompilationConstants(Section):
    """Section `compilation` of `data/calibration.toml`."""

    seconds_per_ipu: float
    seconds_per_layer: float
    inference_share: float


def compilation_constants() -> CompilationConstants:
    """Return the constants of `data/calibration.toml`."""
    return values("compilation", CompilationConstants)


def compilation_seconds(program: Program, lowered: Costs) -> float:
    """Return the modelled compilation time in seconds: a x IPUs of one replica + b x convolutions and linear layers.

    Replicas, accumulation and device iterations do not change it (hardware reference, section F).
    """
    constants = compilation_constants()
    layers = sum(1 for op in lowered.of(phase=Phase.FORWARD) if op.work.flops)
    seconds = constants.seconds_per_ipu * len(program.step.ipus) + constants.seconds_per_layer * layers
    return seconds if program.training else seconds * constants.inference_share
