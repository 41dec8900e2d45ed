"""`Options.Training`: how gradients of micro-batches and replicas become one update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poptorch.enums import MeanReductionStrategy, ReductionType
from poptorch.options.container import OptionsContainer
from poptorch.options.popart import _PopartOptions

if TYPE_CHECKING:
    from typing_extensions import Self


class _TrainingOptions(OptionsContainer):
    """Options that only training uses."""

    _popart: _PopartOptions

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )
        self._declare(_popart=popart_options)

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Set how many micro-batches contribute to one weight update."""
        return self.set(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set how gradients are combined over accumulations, replicas and processes.

        Raises `ValueError` for anything but `ReductionType.Mean` and `ReductionType.Sum`.
        """
        self.checkIsFrozen()
        if not any(reduction_type is allowed for allowed in (ReductionType.Mean, ReductionType.Sum)):
            raise ValueError(
                "accumulationAndReplicationReductionType takes poptorch.ReductionType.Mean or "
                f"poptorch.ReductionType.Sum; got {reduction_type!r}."
            )
        return self.set(accumulation_and_replication_reduction_type=reduction_type)

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """Set when a mean reduction divides; raise `AssertionError` for another type."""
        return self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Let the loss scale adapt itself during training, starting at the optimiser's value."""
        self._popart.set("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Spread convolutions that use few tiles over different tiles; replaces all convolution options."""
        self._popart.set("convolutionOptions", {"enableConvDithering": enabled})
        return self
