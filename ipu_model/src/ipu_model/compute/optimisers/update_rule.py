"""What every update has in common: the scalars that it reads, the tensors that it changes, and square roots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ipu_model.compute.rounding import Rounding
from ipu_model.optimiser import Hyper, StateTensor, WeightUpdate
from ipu_model.step import FLOAT16

Scalars = Mapping[str, float]


@dataclass(frozen=True)
class Entry:
    """One weight about to be updated: float32 containers, `half` if the weight lies on the float16 grid.

    `state` maps a slot's prefix to its tensor; `fresh` tells that the state never saw an update.
    """

    weight: Tensor
    gradient: Tensor
    state: Mapping[str, Tensor]
    half: bool
    fresh: bool


@dataclass(frozen=True)
class Context:
    """What one update shares: the true gradient is `gradient * scale / loss_scaling`."""

    scale: float
    loss_scaling: float
    rounding: Rounding

    @property
    def unscale(self) -> float:
        """The factor that turns a summed, loss-scaled gradient into the true one."""
        return self.scale / self.loss_scaling

    def round_weights(self, entries: Sequence[Entry]) -> None:
        """Round the weights that lie on the float16 grid."""
        self.rounding([entry.weight for entry in entries if entry.half])

    def round_state(self, entries: Sequence[Entry], slot: StateTensor) -> None:
        """Round the state tensors of `slot` if it is kept in half precision."""
        if slot.dtype == FLOAT16:
            self.rounding([entry.state[slot.prefix] for entry in entries])


class UpdateRule(Protocol):
    """The arithmetic of one `WeightUpdate`; frozen, and equal for equal updates."""

    # Whether `update` uses the gradient tensors as scratch space.
    consumes_gradient: ClassVar[bool]

    @property
    def compiled(self) -> WeightUpdate:
        """The update, as far as it is compiled in."""

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        """Return the scalars that are sent to the device for one weight."""

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Update the weights and states of `entries`, which share `scalars`, in place."""


def states(entries: Sequence[Entry], slot: StateTensor) -> list[Tensor]:
    """Return the state tensors of one slot, in the order of `entries`."""
    return [entry.state[slot.prefix] for entry in entries]


def root(x: Tensor, *, out: Tensor) -> Tensor:
    """Write the square root of `x` to `out` and return it; 0 gives 0, negative numbers give NaN.

    On CPUs where `torch.sqrt` is the vendor's vector library, zeros make it five and subnormals thirty times
    slower; second moments, in half precision above all, are full of both.
    """
    return torch.rsqrt(x, out=out).reciprocal_()
