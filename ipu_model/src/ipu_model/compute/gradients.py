"""Combine the gradients of micro-batches, then of replicas (all or groups), and scale the loss to suit them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ipu_model.batching import ReplicaGroups
from ipu_model.compute.rounding import LARGEST_HALF, Overflow, Rounding

FACTOR, FINAL = "lossScaleUpdateFactor", "finalLossScale"
# If gradients stay NaN, repeated halving of the loss scale must not lead to a division by zero.
_LEAST = torch.finfo(torch.float32).tiny


@dataclass
class Accumulator:
    """Sums (or averages, `running`) gradients in fp32 or, with `half`, in fp16 storage.

    A running mean over k micro-batches is updated as `mean * k / (k + 1) + gradient / (k + 1)`; with fp16 storage
    every product and sum is rounded. `fresh` says which gradients may be kept without a copy.
    """

    fresh: Sequence[bool]
    half: bool = False
    running: bool = False
    overflow: Overflow = Overflow.CLIP
    totals: list[Tensor] = field(default_factory=list)
    count: int = 0

    def add(self, gradients: Sequence[Tensor]) -> None:
        if not self.totals:
            dense = torch.contiguous_format
            self.totals = [g if own else g.clone(memory_format=dense) for g, own in zip(gradients, self.fresh)]
            self._store(self.totals)
        elif self.running:
            share = 1.0 / (self.count + 1)
            for total, gradient in zip(self.totals, gradients):
                self._store([total.mul_(self.count * share)])
                self._store([total.add_(gradient, alpha=share)])
        else:
            for total, gradient in zip(self.totals, gradients):
                total.add_(gradient)
            self._store(self.totals)
        self.count += 1

    def _store(self, totals: Sequence[Tensor]) -> None:
        if self.half:
            Rounding(overflow=self.overflow)(totals)


def reduce_in_groups(
    totals: Sequence[Sequence[Tensor]], names: Sequence[str], groups: Mapping[str, ReplicaGroups], *, mean: bool
) -> list[Tensor]:
    """Sum the accumulators `totals[replica][weight]` over replicas; those of grouped weights over each group only.

    A grouped weight's result has its groups as the leading dimension. The weight update takes a `mean` over all
    replicas, so with `mean` the result is multiplied by the number of replicas divided by the group size.
    """
    summed = []
    for name, gradients in zip(names, zip(*totals)):
        if name in groups:
            kind = groups[name]
            total = torch.zeros(kind.count, *gradients[0].shape, dtype=gradients[0].dtype)
            for replica, gradient in enumerate(gradients):
                total[kind.of(replica)] += gradient
            summed.append(total.mul_(kind.count) if mean else total)
        else:
            # In place on the first replica's accumulator.
            total = gradients[0]
            for gradient in gradients[1:]:
                total.add_(gradient)
            summed.append(total)
    return summed


@dataclass(frozen=True)
class LossScalingSettings:
    """PopART's `automaticLossScalingSettings`: shares of the largest float16 and of all elements, weight updates."""

    bin_edge: float = 0.125
    threshold: float = 1e-7
    period: int = 1


@dataclass
class AutomaticLossScaling:
    """Watches the scaled gradients and adapts `factor`, a power of two by which the loss scaling is multiplied.

    If, in a period of updates, the share of gradient elements from the bin edge on exceeds the threshold, the factor is
    halved; otherwise it is doubled. Only `half` gradients count. The final loss scale stays within `loss_dtype`.
    """

    settings: LossScalingSettings
    half: Sequence[bool]
    loss_dtype: torch.dtype
    across: Callable[[list[Tensor]], None] | None = None
    factor: float = 1.0
    _updates: int = 0
    _elements: int = 0
    _above: int = 0

    def observe(self, gradients: Sequence[Tensor]) -> None:
        """Count the elements of one micro-batch's gradients; infinities and NaN lie above the edge."""
        edge = self.settings.bin_edge * LARGEST_HALF
        for gradient, half in zip(gradients, self.half):
            if half:
                self._elements += gradient.numel()
                self._above += gradient.numel() - int(torch.count_nonzero(gradient.abs() < edge))

    def adapt(self, loss_scaling: float) -> None:
        """Count a weight update and, once per period, halve or double the factor; `loss_scaling` is without it."""
        self._updates += 1
        if self._updates % self.settings.period:
            return
        counts = [torch.tensor([self._elements, self._above], dtype=torch.float64)]
        if self.across is not None:
            self.across(counts)
        elements, above = counts[0].tolist()
        self._elements, self._above = 0, 0
        if elements and above / elements > self.settings.threshold:
            self.factor = max(self.factor / 2, _LEAST)
        elif abs(loss_scaling) * self.factor * 2 <= 2.0 ** math.floor(math.log2(torch.finfo(self.loss_dtype).max)):
            self.factor *= 2
