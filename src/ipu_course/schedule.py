"""Which IPU works on which micro-batch, and when: the schedule of one weight update, in closed form.

A pipeline step has two halves, one for a forward and one for a backward pass on each IPU. That is an order of
work, not a duration: real passes differ in length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

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
        """Return the share of the time in which the IPUs work, from 0 to 1.

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
        """Return how many micro-batches a stage keeps at once from their forward to their backward pass.

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
    """Return the grouped pipeline schedule: in every step all IPUs run forward passes, then all run backward passes.

    Micro-batch m is in stage k's forward pass in step k + m, and in its backward pass in step
    2 (stages - 1) - k + m. Below 2 x stages - 1 micro-batches, which PopTorch refuses, no step is steady.
    Raises ``ValueError`` for counts below 1.
    """
    check_counts(stages, micro_batches)
    last = stages - 1
    forward = [(stage, m, 2 * (stage + m)) for m in range(micro_batches) for stage in range(stages)]
    backward = [(stage, m, 2 * (2 * last - stage + m) + 1) for m in range(micro_batches) for stage in range(stages)]
    return Schedule(stages, micro_batches, in_order(forward, backward))


def interleaved(stages: int, micro_batches: int) -> Schedule:
    """Return the interleaved schedule: neighbouring IPUs alternate, one runs a forward, the other a backward pass.

    Micro-batch m is in stage k's forward pass in half-step k + 2m, and in its backward pass in half-step
    2 stages - 1 - k + 2m. PopTorch does not offer it; TensorFlow for the IPU did. Raises ``ValueError`` for counts
    below 1.
    """
    check_counts(stages, micro_batches)
    forward = [(stage, m, stage + 2 * m) for m in range(micro_batches) for stage in range(stages)]
    backward = [(stage, m, 2 * stages - 1 - stage + 2 * m) for m in range(micro_batches) for stage in range(stages)]
    return Schedule(stages, micro_batches, in_order(forward, backward))


def sharded(stages: int, micro_batches: int) -> Schedule:
    """Return the sharded schedule: one IPU at a time, each micro-batch to its end before the next one starts.

    Raises ``ValueError`` for counts below 1.
    """
    check_counts(stages, micro_batches)
    trip = 2 * stages
    forward = [(stage, m, trip * m + stage) for m in range(micro_batches) for stage in range(stages)]
    backward = [(stage, m, trip * (m + 1) - 1 - stage) for m in range(micro_batches) for stage in range(stages)]
    return Schedule(stages, micro_batches, in_order(forward, backward))


def in_order(forward: list[tuple[int, int, int]], backward: list[tuple[int, int, int]]) -> tuple[Pass, ...]:
    """Return passes in order of time; each is given as (stage, micro-batch, half-step)."""
    made = [Pass(FORWARD, *place) for place in forward] + [Pass(BACKWARD, *place) for place in backward]
    return tuple(sorted(made, key=lambda each: (each.half_step, each.stage)))


def check_counts(stages: int, micro_batches: int) -> None:
    """Raise ``ValueError`` for counts below 1."""
    if stages < 1 or micro_batches < 1:
        raise ValueError(f"a schedule has at least 1 stage and 1 micro-batch, not {stages} and {micro_batches}")


@dataclass(frozen=True)
class Problem:
    """A rule that passes break, in words."""

    words: str
    passes: tuple[Pass, ...]


def problems(schedule: Schedule) -> tuple[Problem, ...]:
    """Return what makes a schedule impossible: passes of one IPU at the same time, and passes before what they need."""
    return (*_overlaps(schedule), *_too_early(schedule))


def _overlaps(schedule: Schedule) -> list[Problem]:
    places: dict[tuple[int, int], list[Pass]] = {}
    for each in schedule.passes:
        places.setdefault((each.stage, each.half_step), []).append(each)
    found = []
    for (stage, _), passes in places.items():
        if len(passes) > 1:
            which = " and ".join(_name(each) for each in passes)
            words = (
                f"IPU {stage} would run {which} at the same time, in step {passes[0].step}: it runs one pass at a time."
            )
            found.append(Problem(words, tuple(passes)))
    return found


def _too_early(schedule: Schedule) -> list[Problem]:
    known = {(each.direction, each.stage, each.micro_batch): each for each in schedule.passes}
    found = []
    for each in schedule.passes:
        needed = known.get(_needs(each, schedule.stages))
        if needed is not None and each.half_step <= needed.half_step:
            words = (
                f"{_name(each)} on IPU {each.stage} is in step {each.step}, but it needs the result of "
                f"{_name(needed)} on IPU {needed.stage} in step {needed.step}"
            )
            words += "." if needed.stage == each.stage else ", and results move between steps."
            found.append(Problem(words, (needed, each)))
    return found


def _needs(each: Pass, stages: int) -> tuple[str, int, int]:
    """Return the pass whose result a pass takes; for the first one, a pass that there is not."""
    if each.direction == FORWARD:
        return FORWARD, each.stage - 1, each.micro_batch
    if each.stage == stages - 1:
        return FORWARD, each.stage, each.micro_batch
    return BACKWARD, each.stage + 1, each.micro_batch


def _name(each: Pass) -> str:
    return f"{'F' if each.direction == FORWARD else 'B'}{each.micro_batch + 1}"


@dataclass(frozen=True)
class PassTimes:
    """How long the passes of a stage take, in any unit; recomputation comes right before each backward pass."""

    forward: float = 1.0
    backward: float = 2.0
    recompute: float = 0.0


@dataclass(frozen=True)
class TimedPass:
    """A pass with the time at which it starts and ends; its first ``recompute`` are recomputation."""

    of: Pass
    start: float
    end: float
    recompute: float = 0.0


def timed_passes(schedule: Schedule, times: PassTimes | Sequence[PassTimes]) -> tuple[TimedPass, ...]:
    """Return the passes with their times: all IPUs start a half-step when the longest pass before it has ended.

    ``times`` are those of every stage, or one for each stage. Raises ``ValueError`` for another number of them.
    """
    by_stage = [times] * schedule.stages if isinstance(times, PassTimes) else list(times)
    if len(by_stage) != schedule.stages:
        raise ValueError(f"there are times for {len(by_stage)} stages, but {schedule.stages} stages")
    lengths = {each: _length(each, by_stage[each.stage]) for each in schedule.passes}
    longest: dict[int, float] = {}
    for each, length in lengths.items():
        longest[each.half_step] = max(longest.get(each.half_step, 0.0), length)
    starts, now = {}, 0.0
    for half_step in sorted(longest):
        starts[half_step] = now
        now += longest[half_step]
    return tuple(_timed(each, starts[each.half_step], lengths[each], by_stage[each.stage]) for each in schedule.passes)


def _length(each: Pass, times: PassTimes) -> float:
    return times.forward if each.direction == FORWARD else times.recompute + times.backward


def _timed(each: Pass, start: float, length: float, times: PassTimes) -> TimedPass:
    return TimedPass(each, start, start + length, 0.0 if each.direction == FORWARD else times.recompute)


def busy_by_time(stages: int, micro_batches: int) -> float:
    """Return the share of the time, 0 to 1, in which an IPU of a grouped pipeline works, if stages are equally long.

    All run forward passes in micro_batches + stages - 1 half-steps, and backward passes in as many; the other
    half-steps are empty and take no time.
    """
    check_counts(stages, micro_batches)
    return micro_batches / (micro_batches + stages - 1)


def busy_by_steps(stages: int, micro_batches: int) -> float:
    """Return the share of the steps, 0 to 1, in which an IPU of a grouped pipeline works: less than of the time."""
    check_counts(stages, micro_batches)
    return micro_batches / (micro_batches + 2 * (stages - 1))
