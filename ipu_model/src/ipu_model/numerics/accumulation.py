"""Gradient accumulation over the micro-batches of a step, then over replicas."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ipu_model.numerics.rounding import round_to_half_


class Accumulator:
    """Sums (or averages, `running`) gradients in fp32 or, with `half`, in fp16 storage.

    A running mean over k micro-batches is updated as `mean * k / (k + 1) + gradient / (k + 1)`; with fp16 storage
    every product and sum is rounded.
    """

    def __init__(self, fresh: Sequence[bool], *, half: bool = False, running: bool = False) -> None:
        self._fresh = fresh
        self._half = half
        self._running = running
        self._count = 0
        self.totals: list[Tensor] = []

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Add the gradients of one micro-batch; those that are fresh may be kept as they are."""
        if not self.totals:
            self.totals = [g if own else g.clone(memory_format=torch.contiguous_format)
                           for g, own in zip(gradients, self._fresh)]  # fmt: skip
            self._store(self.totals)
        elif self._running:
            self._average(gradients)
        else:
            for total, gradient in zip(self.totals, gradients):
                total.add_(gradient)
            self._store(self.totals)
        self._count += 1

    def _average(self, gradients: Sequence[Tensor]) -> None:
        share = 1.0 / (self._count + 1)
        for total, gradient in zip(self.totals, gradients):
            total.mul_(self._count * share)
            self._store([total])
            total.add_(gradient, alpha=share)
            self._store([total])

    def _store(self, totals: Sequence[Tensor]) -> None:
        if self._half:
            for total in totals:
                round_to_half_(total)


def reduce_replicas(totals: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Sum the accumulators of all replicas, weight by weight, in place on the first replica's."""
    first = list(totals[0])
    for other in totals[1:]:
        for total, gradient in zip(first, other):
            total.add_(gradient)
    return first
