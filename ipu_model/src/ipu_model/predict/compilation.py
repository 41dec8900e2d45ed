"""How long Graphcore's compiler would take: a straight line through published compilations."""

from __future__ import annotations

from ipu_model.predict.costs import Costs
from ipu_model.predict.program import Program
from ipu_model.step import Phase, Source, Step, Tensor


def compilation_seconds(program: Program, costs: Costs) -> float:
    """Return the modelled compilation time in seconds: a x IPUs of one replica + b x convolutions and linear layers.

    Replicas, accumulation and device iterations do not change it (hardware reference, section F).
    """
    constants, layers = program.calibration.compilation, layers_of(program, costs)
    seconds = constants.seconds_per_ipu * len(program.step.ipus) + constants.seconds_per_layer * layers
    return seconds if program.training else seconds * constants.inference_share


def layers_of(program: Program, costs: Costs) -> int:
    """Return the number of convolutions and linear layers: products with a weight, which those of attention are not."""
    step = program.step
    products = (step.by_name[op.node] for op in costs.of(phase=Phase.FORWARD) if op.work.flops)
    return sum(any(_is_weight(tensor, step) for tensor in step.read_by(op)) for op in products)


def _is_weight(tensor: Tensor, step: Step) -> bool:
    """Whether a tensor is a weight, trained or frozen, or a view or cast of one."""
    return tensor.of_weight or step.source(tensor.name) is Source.VARIABLE
