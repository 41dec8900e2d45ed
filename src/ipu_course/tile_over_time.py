"""What the fullest tile of an IPU holds over a training step: a floor that is always live, and a hill on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence

from ipu_course import engine

if TYPE_CHECKING:
    from ipu_course.engine import Profile

KIB = 1024


@dataclass(frozen=True)
class Hill:
    """The fullest tile of one IPU over a training step, in KiB.

    ``live`` are the results and gradients in memory at each step, ``temporary`` what the running op needs besides,
    ``phases`` and ``names`` what runs. What is always live are ``weights``, ``state`` (of the optimiser, and
    accumulators) and ``code`` with all that is no tensor; ``limit`` is the tile's memory.
    """

    weights: float
    state: float
    code: float
    live: Sequence[float]
    temporary: Sequence[float]
    phases: Sequence[str]
    names: Sequence[str]
    limit: float

    @property
    def floor(self) -> float:
        """The KiB that are always live."""
        return self.weights + self.state + self.code

    @property
    def peak(self) -> int:
        """The step at which the tile is fullest."""
        return max(range(len(self.live)), key=lambda step: self.live[step] + self.temporary[step])

    @property
    def height(self) -> float:
        """The not-always-live KiB at the peak."""
        return self.live[self.peak] + self.temporary[self.peak]

    @property
    def after_forward(self) -> float:
        """The KiB of results that are live at the end of the forward pass."""
        last = max(step for step, phase in enumerate(self.phases) if phase == "forward")
        return self.live[last]


@engine.needs_the_model
def hill_of(profile: Profile, ipu: int = 0) -> Hill:
    """Return the hill of the fullest tile of one IPU; without an IPU Model that is ``NOT_MODELLED``."""
    memory = profile.memory[ipu]
    sizes = memory.bytes_by_category
    weights = (sizes.get("variables", 0.0) + sizes.get("constants", 0.0)) / KIB
    state = (sizes.get("optimiser state", 0.0) + sizes.get("gradient accumulators", 0.0)) / KIB
    return Hill(
        weights=weights,
        state=state,
        code=memory.always_live_bytes / KIB - weights - state,
        live=[(step.bytes_on_tile - step.temporary_bytes) / KIB for step in memory.liveness],
        temporary=[step.temporary_bytes / KIB for step in memory.liveness],
        phases=[step.phase for step in memory.liveness],
        names=[step.name for step in memory.liveness],
        limit=profile.memory.tile_bytes / KIB,
    )
