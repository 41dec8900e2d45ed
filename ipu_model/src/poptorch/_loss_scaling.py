"""`Options.Training.setAutomaticLossScaling`: its settings, what it asks of a program, its anchored tensor."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from ipu_model.graph import Graph
from ipu_model.numerics.loss_scaling import LossScalingSettings
from poptorch._errors import createPoptorchError
from poptorch.enums import ReductionType

if TYPE_CHECKING:
    from poptorch.options import Options

_logger = logging.getLogger("poptorch::python")

_KEY = "automaticLossScalingSettings"


def is_automatic(options: Options) -> bool:
    """Whether the options let the loss scaling adapt itself."""
    return bool(options._Popart.options.get(f"{_KEY}.enabled", False))


def settings_text(options: Options) -> str:
    """Return what was set of automatic loss scaling, as text that is the same where the settings are."""
    chosen = {key: value for key, value in options._Popart.options.items() if key.startswith(_KEY)}
    return ", ".join(f"{key}={value}" for key, value in sorted(chosen.items())) or "off"


def loss_scaling_settings(graph: Graph, options: Options) -> LossScalingSettings | None:
    """Return how the loss scaling of a training program adapts, or `None` if it does not.

    Raises:
        Error: no trained float16 weight whose gradients could be watched, or settings outside their range.
    """
    if not is_automatic(options):
        return None
    if not any(v.spec.dtype is torch.float16 and v.name in graph.gradients for v in graph.variables):
        raise createPoptorchError(
            "Training.setAutomaticLossScaling watches the gradients of float16 weights, and the model trains none. "
            "Convert the model with half(), or leave automatic loss scaling off."
        )
    if options.Training.accumulation_and_replication_reduction_type != ReductionType.Mean:
        _logger.warning(
            "Automatic loss scaling expects "
            "Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)."
        )
    popart, default = options._Popart.options, LossScalingSettings()
    settings = LossScalingSettings(
        float(popart.get(f"{_KEY}.binEdgeLocation", default.bin_edge)),
        float(popart.get(f"{_KEY}.thresholdUpperCountProportion", default.threshold)),
        int(popart.get(f"{_KEY}.updatePeriod", default.period)),
    )
    for name, share in (
        ("binEdgeLocation", settings.bin_edge),
        ("thresholdUpperCountProportion", settings.threshold),
    ):
        if not 0.0 <= share <= 1.0:
            raise createPoptorchError(f"{_KEY}.{name} is a proportion between 0 and 1, not {share}.")
    if settings.period < 1:
        raise createPoptorchError(f"{_KEY}.updatePeriod must be at least 1, not {settings.period}.")
    return settings
