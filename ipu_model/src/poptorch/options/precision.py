"""`Options.Precision`: rounding, accumulator types and floating-point exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from poptorch._logging import logger
from poptorch.options.container import OptionsContainer
from poptorch.options.popart import _PopartOptions

if TYPE_CHECKING:
    from typing_extensions import Self

_PARTIALS = {torch.float32: "float", torch.float16: "half"}


class _PrecisionOptions(OptionsContainer):
    """Options that decide how numbers are rounded; they are stored among the backend settings."""

    _popart: _PopartOptions

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__()
        self._declare(_popart=popart_options)

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Round to float16 at random, with the exact value as the mean; meant for training."""
        self._popart.set("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Set the accumulator type inside matmuls and convolutions; replaces all convolution options.

        Raises `ValueError` for a dtype other than `torch.float32` and `torch.float16`.
        """
        self.checkIsFrozen()
        partials = next((name for known, name in _PARTIALS.items() if dtype is known), None)
        if partials is None:
            raise ValueError(f"setPartialsType takes torch.float32 or torch.float16; got {dtype!r}.")
        self._popart.set("partialsTypeMatMuls", partials)
        self._popart.set("convolutionOptions", {"partialsType": partials})
        return self

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Stop with an error on invalid operations and overflow; raise `AssertionError` for a non-bool."""
        self.checkIsFrozen()
        assert isinstance(enabled, bool), f"enableFloatingPointExceptions takes a bool; got {enabled!r}."
        self._popart.set("enableFloatingPointChecks", enabled)
        return self

    def halfFloatCasting(self, half_float_casting: object) -> Self:
        """Do nothing but warn: PopTorch deprecated this, mixed types follow PyTorch's promotion."""
        self.checkIsFrozen()
        logger.warning(
            "[Deprecated] Precision.halfFloatCasting has no effect (%r given): "
            "operations on mixed types follow PyTorch's promotion rules.",
            half_float_casting,
        )
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Do nothing but warn: PopTorch deprecated this; raise `ValueError` for a non-bool."""
        self.checkIsFrozen()
        if not isinstance(value, bool):
            raise ValueError(f"runningStatisticsAlwaysFloat takes a bool; got {value!r}.")
        logger.warning(
            "[Deprecated] Precision.runningStatisticsAlwaysFloat has no effect: "
            "running statistics keep the type their module gives them."
        )
        return self
