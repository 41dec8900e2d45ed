"""How long Graphcore's compiler would take: a straight line through published compilations."""

from __future__ import annotations

from ipu_model.predict.costs import Costs
from ipu_model.predict.program import Program
from ipu_model.step import Phase


def compilation_seconds(program: Program, costs: Costs) -> float:
    """Return the modelled compilation time in seconds: a x IPUs of one replica + b x convolutions and linear layers.

    Replicas, accumulation and device iterations do not change it (hardware reference, section F).
    """
    constants = program.calibration.compilation
    layers = sum(1 for op in costs.of(phase=Phase.FORWARD) if op.work.flops)
    seconds = constants.seconds_per_ipu * len(program.step.ipus) + constants.seconds_per_layer * layers
    return seconds if program.training else seconds * constants.inference_share
