"""The time of one weight update as what grows with its micro-batches, and what does not.

Symbols: G micro-batches of an update, m seconds of each, u seconds that an update takes besides: T(G) = m G + u.
Filling and flushing the pipeline, collectives, the optimiser and the update's part of the call are in u. Two runs
give both ("Memory and Performance Optimisation on the IPU", section 7.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.errors import Error
from ipu_model.host_work import HostWork
from ipu_model.knobs import changed
from ipu_model.profiling.build import profile_program
from ipu_model.program import Program


@dataclass(frozen=True)
class UpdateTime:
    """Seconds of a weight update: `micro_batches` of them, `per_micro_batch` each, and `constant` once."""

    micro_batches: int
    per_micro_batch: float
    constant: float

    @property
    def total(self) -> float:
        """Seconds from one update to the next."""
        return self.micro_batches * self.per_micro_batch + self.constant

    @property
    def constant_share(self) -> float:
        """The share of an update that fewer micro-batches do not shorten: Amdahl's constant share."""
        return self.constant / self.total

    def with_micro_batches(self, count: int) -> UpdateTime:
        """Return the time of an update of `count` micro-batches."""
        return UpdateTime(count, self.per_micro_batch, self.constant)


def update_time(program: Program, host: HostWork | None = None) -> UpdateTime:
    """Return the time of one weight update of a training program, from profiles with G and 2 G micro-batches.

    Raises:
        Error: a program without weight updates.
    """
    if not program.training:
        raise Error("Only training programs have weight updates; this one is for inference.")
    once, twice = (_seconds(program, count, host) for count in (1, 2))
    count = program.batching.accumulation
    per_micro_batch = (twice - once) / count
    return UpdateTime(count, per_micro_batch, max(0.0, once - count * per_micro_batch))


def _seconds(program: Program, times: int, host: HostWork | None) -> float:
    batching = program.batching
    longer = changed(program, gradient_accumulation=batching.accumulation * times)
    return profile_program(longer, host).call_seconds / batching.device_iterations
