"""The shape that every family of updates has: which state it keeps, which scalars it reads, what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ipu_model.numerics.rounding import Rounding
from ipu_model.optimiser.spec import Hyper

Scalars = Mapping[str, float]


@dataclass(frozen=True)
class Slot:
    """One state tensor per weight, called `<prefix>___<weight>`; of the weight's shape unless `single`."""

    prefix: str
    dtype: torch.dtype = torch.float32
    initial: float = 0.0
    single: bool = False


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

    def round_state(self, entries: Sequence[Entry], slot: Slot) -> None:
        """Round the state tensors of `slot` if it is kept in half precision."""
        if slot.dtype == torch.float16:
            self.rounding([entry.state[slot.prefix] for entry in entries])


class Rule(Protocol):
    """The update of one family in one structure; frozen, and equal for equal structure."""

    # Whether `update` uses the gradient tensors as scratch space.
    consumes_gradient: ClassVar[bool]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The state tensors that each weight has."""

    def scalars(self, hyper: Hyper, loss_scaling: float) -> dict[str, float]:
        """Return the scalars that are sent to the device for one weight."""

    def update(self, entries: Sequence[Entry], scalars: Scalars, context: Context) -> None:
        """Update the weights and states of `entries`, which share `scalars`, in place."""


def states(entries: Sequence[Entry], slot: Slot) -> list[Tensor]:
    """Return the state tensors of one slot, in the order of `entries`."""
    return [entry.state[slot.prefix] for entry in entries]
