"""Which IPU works on which micro-batch, and when: the schedule of one weight update, in closed form.

A pipeline step has two halves, one for a forward and one for a backward pass on each IPU. That is an order of
work, not a duration: real passes differ in length.
"""

from __future__ import annotations

from dataclasses import dataclass

FORWARD = "forward"
BACKWARD = "backward"


@dataclass(frozen=True)
class Pass:
    """One micro-batch's way through one stage; stages, micro-batches and half-steps count from 0."""

    direction: str
    stage: int
    micro_batch: int
    half_step: int

    @property
    def step(self) -> int:
        """The pipeline step that the pass is in."""
        return self.half_step // 2


@dataclass(frozen=True)
class Schedule:
    """All passes of one weight update: ``micro_batches`` through ``stages``, stage i on IPU i."""

    stages: int
    micro_batches: int
    passes: tuple[Pass, ...]

    @property
    def steps(self) -> int:
        """Pipeline steps from the first forward pass to the last backward pass."""
        return 1 + max(each.step for each in self.passes)

    @property
    def steady_steps(self) -> range:
        """The steps in which every IPU has both a forward and a backward pass; may be empty."""
        busy = [0] * self.steps
        for each in self.passes:
            busy[each.step] += 1
        full = [step for step, count in enumerate(busy) if count == 2 * self.stages]
        return range(full[0], full[-1] + 1) if full else range(0)

    @property
    def utilisation(self) -> float:
        """Share of the IPUs' half-steps that hold a pass, from 0 to 1."""
        return len(self.passes) / (2 * self.steps * self.stages)

    def busy_share(self, backward: float) -> float:
        """Share of the time in which the IPUs work, from 0 to 1.

        A backward pass takes ``backward`` times as long as a forward pass; stages are equally long. A half-step lasts
        as long as the longest pass in it, and one without any pass takes no time.
        """
        longest: dict[int, float] = {}
        work = 0.0
        for each in self.passes:
            cost = 1.0 if each.direction == FORWARD else backward
            longest[each.half_step] = max(longest.get(each.half_step, 0.0), cost)
            work += cost
        return work / (self.stages * sum(longest.values()))

    def stash(self, stage: int) -> int:
        """How many micro-batches a stage keeps at once from their forward to their backward pass.

        None where each micro-batch goes straight on to its backward pass, as in the last stage: nothing has to be
        put aside then.
        """
        under_way = most = 0
        for each in self.passes:
            if each.stage == stage:
                under_way += 1 if each.direction == FORWARD else -1
                most = max(most, under_way)
        return most if most > 1 else 0


def pipelined(stages: int, micro_batches: int) -> Schedule:
    """The grouped pipeline schedule: in every step all IPUs run forward passes, then all run backward passes.

    Micro-batch m is in stage k's forward pass in step k + m, and in its backward pass in step
    2 (stages - 1) - k + m. Below 2 x stages - 1 micro-batches, which PopTorch refuses, no step is steady.
    Raises ``ValueError`` for counts below 1.
    """
    _check(stages, micro_batches)
    last = stages - 1
    forward = [(stage, m, 2 * (stage + m)) for m in range(micro_batches) for stage in range(stages)]
    backward = [(stage, m, 2 * (2 * last - stage + m) + 1) for m in range(micro_batches) for stage in range(stages)]
    return Schedule(stages, micro_batches, _passes(forward, backward))


def interleaved(stages: int, micro_batches: int) -> Schedule:
    """The interleaved pipeline schedule: neighbouring IPUs alternate, one runs a forward, the other a backward pass.

    Micro-batch m is in stage k's forward pass in half-step k + 2m, and in its backward pass in half-step
    2 stages - 1 - k + 2m. PopTorch does not offer it; TensorFlow for the IPU did. Raises ``ValueError`` for counts
    below 1.
    """
    _check(stages, micro_batches)
    forward = [(stage, m, stage + 2 * m) for m in range(micro_batches) for stage in range(stages)]
    backward = [(stage, m, 2 * stages - 1 - stage + 2 * m) for m in range(micro_batches) for stage in range(stages)]
    return Schedule(stages, micro_batches, _passes(forward, backward))


def sharded(stages: int, micro_batches: int) -> Schedule:
    """The sharded schedule: one IPU at a time, each micro-batch to its end before the next one starts.

    Raises ``ValueError`` for counts below 1.
    """
    _check(stages, micro_batches)
    trip = 2 * stages
    forward = [(stage, m, trip * m + stage) for m in range(micro_batches) for stage in range(stages)]
    backward = [(stage, m, trip * (m + 1) - 1 - stage) for m in range(micro_batches) for stage in range(stages)]
    return Schedule(stages, micro_batches, _passes(forward, backward))


def _passes(forward: list[tuple[int, int, int]], backward: list[tuple[int, int, int]]) -> tuple[Pass, ...]:
    made = [Pass(FORWARD, *place) for place in forward] + [Pass(BACKWARD, *place) for place in backward]
    return tuple(sorted(made, key=lambda each: (each.half_step, each.stage)))


def _check(stages: int, micro_batches: int) -> None:
    if stages < 1 or micro_batches < 1:
        raise ValueError(f"a schedule has at least 1 stage and 1 micro-batch, not {stages} and {micro_batches}")
