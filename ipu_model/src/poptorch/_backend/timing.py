"""The modelled times of one call's input and output transfers, as PopTorch's performance counters in seconds.

A call of S = D x A steps is a row of D pipelines of A (training) or one of D (inference) micro-batches. With K
stages a pipeline of M micro-batches has M + K - 1 cycles (training: M + 2 (K - 1)). All cycles, including weight
updates, are assumed to be equally long and fill the device time from the first transfer on. Symbols as in the options
reference: D device iterations, A gradient accumulation, R replicas.
"""

from __future__ import annotations

from collections import defaultdict

from ipu_model.batching import Keep
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Execution, Program

EVENTS = ("input", "input_complete", "output", "output_complete")

PerfCounters = dict[str, list[list[float]]]
Latency = tuple[float, float, float]
# Seconds since the start of a call at which one transfer begins and ends.
Ticks = tuple[float, float]


def perf_counters(program: Program, profile: Profile, *, anchors: int = 0) -> PerfCounters:
    """Return the counters of one call: for each event one list per tensor, of its times by replica, then by step.

    The last `anchors` outputs of the program are not results of forward and have no counters.
    """
    arriving, leaving = ([], []) if program.synthetic_data else _transfers(program, profile)
    inputs, outputs = len(program.step.inputs), len(program.step.outputs) - anchors
    counters = {}
    for name, ticks, tensors in (("input", arriving, inputs), ("output", leaving, outputs)):
        everywhere = ticks * program.batching.replicas
        counters[name] = [[begin for begin, _ in everywhere] for _ in range(tensors)]
        counters[f"{name}_complete"] = [[end for _, end in everywhere] for _ in range(tensors)]
    return counters


def latency(counters: PerfCounters, start: str, end: str) -> Latency:
    """Return the minimum, maximum and average seconds from event `start` to event `end`; zeros without data.

    The earliest start and the latest end count of several tensors, and of several starts that lead to one end.
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


def _transfers(program: Program, profile: Profile) -> tuple[list[Ticks], list[Ticks]]:
    # Inputs travel at the start of a micro-batch's first cycle, results at the end of its last forward cycle. A single
    # result of a call leaves with the last micro-batch.
    batching, returns = program.batching, program.returns
    depth = len(program.step.stages) if program.execution is not Execution.SHARDED else 1
    pipelines, micro_batches = (
        (batching.device_iterations, batching.accumulation) if program.training else (1, batching.steps)
    )
    cycles = micro_batches + (2 if program.training else 1) * (depth - 1)
    # A run starts when the device does, which first waits for the host.
    device = [span for span in profile.timeline if span.kind not in ("load", "call")]
    work = [span.start for span in device if span.kind != "wait"]
    origin = min(work, default=0.0) - min((span.start for span in device), default=0.0)
    cycle = (profile.device_seconds_per_call - origin) / (pipelines * cycles)
    kept = [step for step in range(batching.steps) if returns.kept(step, batching.steps)]
    returned = 1 if returns.keep in (Keep.FINAL, Keep.SUM) else max(1, len(kept))
    seconds_in = min(_seconds(profile, "stream in") / batching.steps, cycle)
    seconds_out = min(_seconds(profile, "stream out") / returned, cycle - seconds_in)
    starts = [origin + (row * cycles + number) * cycle for row in range(pipelines) for number in range(micro_batches)]
    ends = [start + depth * cycle for start in starts]
    chosen = ends[-1:] if returns.keep is Keep.SUM else [ends[step] for step in kept]
    return [(start, start + seconds_in) for start in starts], [(end - seconds_out, end) for end in chosen]


def _seconds(profile: Profile, kind: str) -> float:
    by_resource: defaultdict[str, float] = defaultdict(float)
    for span in profile.timeline:
        if span.kind == kind:
            by_resource[span.resource] += span.seconds
    return max(by_resource.values(), default=0.0)
