"""The time of a call on the device, summed by IPU and by activity.

`work` describes the work, `order` its order, and `timing` how long each part of a cycle takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ipu_model.batching import Keep
from ipu_model.errors import Error
from ipu_model.predict.costs import Costs
from ipu_model.predict.links import host_link
from ipu_model.predict.order import Order
from ipu_model.predict.passes import Round
from ipu_model.predict.profile import PhaseCycles, Span
from ipu_model.predict.program import Program
from ipu_model.predict.segments import CyclesByKind, Piece, Segment, cycles_of, length
from ipu_model.predict.timeline import timeline_of
from ipu_model.predict.timing import Call, Conditions, CycleTime, Timing, call_of
from ipu_model.predict.work import Workload, workload_of


@dataclass(frozen=True)
class StageTime:
    """Cycles of one stage's own work for one micro-batch, without waits, streams and copies."""

    stage: int
    ipu: int
    forward: float
    recompute: float
    backward: float

    @property
    def total(self) -> float:
        """Cycles of all passes of one micro-batch."""
        return self.forward + self.recompute + self.backward


@dataclass(frozen=True)
class DeviceTime:
    """One call of a program on the device: D device iterations of G micro-batches and an update each.

    `cycles` has one entry for each IPU of a replica; their totals are all `device_cycles`, because waiting
    counts as external sync. `shares` are fractions of that time by name and sum to 1. `main_cycle` and
    `update_cycles` are the times of one main cycle (zeros if there are too few micro-batches for any) and of
    one weight update; `pipeline_cycles` counts the cycles before each update.
    `limited_by` is one of "stage <k>", "stream", "pipeline fill and flush", "weight update", "inter-IPU copy", "run
    start".
    """

    cycles: tuple[PhaseCycles, ...]
    device_cycles: float
    timeline: tuple[Span, ...]
    shares: Mapping[str, float]
    stage_times: tuple[StageTime, ...]
    main_cycle: CycleTime
    update_cycles: float
    pipeline_cycles: int
    limited_by: str


def time_of(program: Program, costs: Costs, order: Order) -> DeviceTime:
    """Return the time of one call of a program on the device, in tile-clock cycles.

    Sources of the formulas: hardware reference, sections D and E.

    Raises:
        Error: tensors are placed off chip on a machine without streaming memory, or overlapped transfers are requested
        without I/O tiles or in a pipeline.
    """
    workload = workload_of(program, costs, order)
    _check_overlap(program, order)
    return run(workload, order.rounds, conditions_of(program), training=program.training)


def _check_overlap(program: Program, order: Order) -> None:
    overlaps = program.overlaps_input or program.overlaps_output
    if overlaps and not program.io_tiles:
        raise Error("Overlapped transfers need tiles of their own: reserve I/O tiles, 32 to 192 of them.")
    if overlaps and order.is_pipelined:
        raise Error("Transfers cannot overlap with the computation of a pipeline; use sharded execution instead.")


def conditions_of(program: Program) -> Conditions:
    """Return the settings of a program's machine and options that affect the time of transfers."""
    system, batching = program.system, program.batching
    returns = program.returns
    every = returns.keep is Keep.ALL or (returns.keep is Keep.EVERY_N and returns.period == 1)
    return Conditions(
        host=host_link(program),
        copy_bytes_per_second=system.link_bytes_per_second * program.calibration.pipeline.copy_link_share,
        sync_cycles=float(system.chip.global_sync_cycles),
        clock_hz=system.chip.clock_hz,
        returns_all=every,
        returned=returns.multiplier(batching) // batching.replicas,  # sums stay on the device until the call ends
        sends_inputs=not program.synthetic_data,
        sends_outputs=not program.synthetic_data,
        prefetch_depth=program.prefetch_depth,
        overlaps_input=program.overlaps_input,
        overlaps_output=program.overlaps_output,
    )


def run(workload: Workload, rounds: Iterable[Round], conditions: Conditions, *, training: bool) -> DeviceTime:
    """Return the time of one call; the cost of computing it does not grow with micro-batches or updates."""
    call = call_of(rounds, Timing(workload, conditions), training=training)
    account, times = Account(call), stage_times(workload)
    return DeviceTime(
        cycles=account.cycles,
        device_cycles=account.device_cycles,
        timeline=timeline_of(call, conditions.clock_hz, "update" if training else "round"),
        shares=account.shares,
        stage_times=times,
        main_cycle=call.main_cycle,
        update_cycles=cycles_of(call.update),
        pipeline_cycles=call.rounds[0].cycles,
        limited_by=account.limited_by(slowest_stage(times)),
    )


def stage_times(workload: Workload) -> tuple[StageTime, ...]:
    """Return the cycles of every stage for one micro-batch."""
    return tuple(
        StageTime(s.index, s.ipu, length(s.forward), length(s.recompute), length(s.backward)) for s in workload.stages
    )


def slowest_stage(times: tuple[StageTime, ...]) -> int:
    """Return the busiest stage of the busiest IPU."""
    by_ipu: dict[int, float] = {}
    for time in times:
        by_ipu[time.ipu] = by_ipu.get(time.ipu, 0.0) + time.total
    busiest = max(by_ipu, key=by_ipu.__getitem__)
    return max((time for time in times if time.ipu == busiest), key=lambda time: time.total).stage


RUN_START = "run start"
SHARES = ("main", "fill and flush", "stream", "copy", "sync", "update", "collective", "offload", RUN_START)
"""The fractions of the device time; "main" is the work in cycles in which every stage does all its passes."""

_SHARE_OF_SEGMENT = {"stream": "stream", "copy": "copy", "sync": "sync", "start": RUN_START}
_SHARE_OF_PIECE = {"collective": "collective", "offload": "offload", "update": "update"}


class Account:
    """The sums of one call."""

    def __init__(self, call: Call) -> None:
        self.device_cycles = 0.0
        self._by_ipu = [CyclesByKind() for _ in range(call.ipus)]
        self._spent = dict.fromkeys(SHARES, 0.0)
        self._in_updates = 0.0
        self._moved_in_passes = 0.0
        self._add(call.start, 1)
        for each in call.rounds:
            for timed in each.intervals:
                count = timed.interval.count * each.repeats
                self._add(timed.segments, count, "main" if timed.interval.is_full else "fill and flush")
            self._add(call.update, each.repeats, "update")
        self._add(call.returned, call.results)

    @property
    def cycles(self) -> tuple[PhaseCycles, ...]:
        """The cycles of each IPU by kind."""
        return tuple(own.cycles for own in self._by_ipu)

    @property
    def shares(self) -> dict[str, float]:
        """The parts of the device time, which sum to 1."""
        whole = sum(self._spent.values())
        return {name: spent / whole if whole else float(name == "main") for name, spent in self._spent.items()}

    def limited_by(self, slowest_stage: int) -> str:
        """Return the bottleneck (see `DeviceTime.limited_by`)."""
        parts = {
            f"stage {slowest_stage}": self._spent["main"] + self._moved_in_passes,
            "pipeline fill and flush": self._spent["fill and flush"],
            "stream": self._spent["stream"],
            "inter-IPU copy": self._spent["copy"],
            "weight update": self._in_updates,
            RUN_START: self._spent[RUN_START],
        }
        return max(parts, key=parts.__getitem__)

    def _add(self, segments: Iterable[Segment], count: int, work: str = "main") -> None:
        """Add `count` repetitions of `segments`, whose work counts as `work`."""
        for segment in segments:
            self.device_cycles += segment.cycles * count
            for ipu, own in enumerate(self._by_ipu):
                own.add(segment, ipu, count)
            if segment.kind in _SHARE_OF_SEGMENT:
                self._spent[_SHARE_OF_SEGMENT[segment.kind]] += segment.cycles * count
                continue
            if segment.kind == "update":
                self._in_updates += segment.cycles * count
            self._share(segment, count, work)

    def _share(self, segment: Segment, count: int, work: str) -> None:
        for piece in _decisive(segment):
            spent = piece.length * count
            self._spent[_SHARE_OF_PIECE.get(piece.kind, work)] += spent
            if segment.kind == "work" and piece.kind in _SHARE_OF_PIECE:
                self._moved_in_passes += spent


def _decisive(segment: Segment) -> list[Piece]:
    """Return the pieces that determine a segment's time: the slowest IPU's, or all if IPUs take turns."""
    longest = segment.longest
    if any(piece.kind == "wait" for piece in longest):
        return [piece for own in segment.pieces for piece in own if piece.kind != "wait"]
    return list(longest)
