"""The modelled times of one call's input and output transfers, as PopTorch's performance counters in seconds.

A call of S = D x A steps is a row of D pipelines of A (training) or one of D (inference) micro-batches. With K
stages a pipeline of M micro-batches has M + K - 1 cycles (training: M + 2 (K - 1)). All cycles, including weight
updates, are assumed to be equally long and fill the device time from the first transfer on. Symbols as in the options
reference: D device iterations, A gradient accumulation, R replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ipu_model.batching import Keep
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Execution, Program

EVENTS = ("input", "input_complete", "output", "output_complete")

PerfCounters = dict[str, list[list[float]]]
Latency = tuple[float, float, float]


@dataclass(frozen=True)
class Ticks:
    """Seconds since the start of a call at which one transfer begins and ends."""

    begin: float
    end: float


def empty_counters() -> PerfCounters:
    """Return the counters of a model that has not run."""
    return {event: [[]] for event in EVENTS}


def perf_counters(program: Program, profile: Profile, *, anchors: int = 0) -> PerfCounters:
    """Return the counters of one call: for each event one list per tensor, of its times in seconds.

    The last `anchors` outputs of the program are not results of forward and have no counters.
    Times are ordered by replica, then by step; all tensors of a micro-batch travel together. A list of inputs
    has D x A x R entries, a list of outputs one for each result that comes back; synthetic data has none.
    """
    inputs = len(program.step.inputs)
    outputs = len(program.step.outputs) - anchors
    if program.synthetic_data:
        arriving: list[Ticks] = []
        leaving: list[Ticks] = []
    else:
        call = _Call.of(program, profile)
        arriving = list(call.inputs()) * program.batching.replicas
        leaving = list(call.outputs()) * program.batching.replicas
    return {
        "input": [[tick.begin for tick in arriving] for _ in range(inputs)],
        "input_complete": [[tick.end for tick in arriving] for _ in range(inputs)],
        "output": [[tick.begin for tick in leaving] for _ in range(outputs)],
        "output_complete": [[tick.end for tick in leaving] for _ in range(outputs)],
    }


def latency(counters: PerfCounters, start: str, end: str) -> Latency:
    """Return the minimum, maximum and average seconds from event `start` to event `end`; zeros without data.

    With several tensors, the earliest start and the latest end count. If there are more starts than ends because some
    results stay on the device, the earliest start of each group that leads to one end counts.
    """
    starts = [min(ticks) for ticks in zip(*counters[start])]
    ends = [max(ticks) for ticks in zip(*counters[end])]
    if not starts or not ends:
        return 0.0, 0.0, 0.0
    group = max(1, len(starts) // len(ends))
    firsts = [min(starts[index : index + group]) for index in range(0, len(starts), group)]
    spans = [max(0.0, last - first) for first, last in zip(firsts, ends)]
    # Rounding must not push the average outside the range from minimum to maximum.
    average = min(max(sum(spans) / len(spans), min(spans)), max(spans))
    return min(spans), max(spans), average


@dataclass(frozen=True)
class _Call:
    """One call of one replica: `pipelines` rows of `micro_batches` each from second `origin` on.

    `cycle` is the seconds of one cycle; `seconds_in` and `seconds_out` are those of one micro-batch's streams.
    """

    program: Program
    pipelines: int
    micro_batches: int
    depth: int
    origin: float
    cycle: float
    cycles_per_pipeline: int
    seconds_in: float
    seconds_out: float

    @classmethod
    def of(cls, program: Program, profile: Profile) -> _Call:
        """Read the times of a call from its profile."""
        batching = program.batching
        depth = len(program.step.stages) if program.execution is not Execution.SHARDED else 1
        shape = (batching.device_iterations, batching.accumulation) if program.training else (1, batching.steps)
        per_pipeline = shape[1] + (2 if program.training else 1) * (depth - 1)
        origin = _first_work(profile)
        cycle = (profile.device_seconds_per_call - origin) / (shape[0] * per_pipeline)
        kept = sum(program.returns.kept(step, batching.steps) for step in range(batching.steps))
        returned = 1 if program.returns.keep in (Keep.FINAL, Keep.SUM) else max(1, kept)
        arriving = min(_seconds(profile, "stream in") / batching.steps, cycle)
        leaving = min(_seconds(profile, "stream out") / returned, cycle - arriving)
        return cls(program, *shape, depth, origin, cycle, per_pipeline, arriving, leaving)

    def inputs(self) -> Iterator[Ticks]:
        """Yield the times of each micro-batch's input transfer, at the start of its first cycle."""
        for begin in self._starts():
            yield Ticks(begin, begin + self.seconds_in)

    def outputs(self) -> Iterator[Ticks]:
        """Yield the times of the result transfers, at the end of each micro-batch's last forward cycle.

        A single result of a call leaves with the last micro-batch.
        """
        ends = [begin + self.depth * self.cycle for begin in self._starts()]
        keep, steps = self.program.returns, len(ends)
        if keep.keep is Keep.SUM:
            chosen: Sequence[float] = ends[-1:]
        else:
            chosen = [end for step, end in enumerate(ends) if keep.kept(step, steps)]
        for end in chosen:
            yield Ticks(end - self.seconds_out, end)

    def _starts(self) -> Iterator[float]:
        for pipeline in range(self.pipelines):
            first = pipeline * self.cycles_per_pipeline
            for micro_batch in range(self.micro_batches):
                yield self.origin + (first + micro_batch) * self.cycle


def _first_work(profile: Profile) -> float:
    """Return the seconds from the start of a run to its first work: the device first waits for the host."""
    device = [span for span in profile.timeline if span.kind not in ("load", "call")]
    work = [span.start for span in device if span.kind != "wait"]
    return min(work, default=0.0) - min((span.start for span in device), default=0.0)


def _seconds(profile: Profile, kind: str) -> float:
    """Return the seconds that the busiest resource spends on spans of this kind."""
    by_resource: dict[str, float] = {}
    for span in profile.timeline:
        if span.kind == kind:
            by_resource[span.resource] = by_resource.get(span.resource, 0.0) + span.seconds
    return max(by_resource.values(), default=0.0)
