"""What scheduling a program gives: cycles by kind, the timeline, and what limits the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ipu_model.profiling.data import PhaseCycles, Span


@dataclass(frozen=True)
class StageTime:
    """Cycles of one stage for one micro-batch: what its IPU does, without waits, streams and copies."""

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
class CycleTime:
    """Cycles of one pipeline cycle in which every stage works; its parts follow one another.

    `work` is that of the IPU with most of it. Without a pipeline it is the time of one micro-batch.
    """

    work: float = 0.0
    stream: float = 0.0
    copy: float = 0.0
    sync: float = 0.0

    @property
    def total(self) -> float:
        """All cycles together."""
        return self.work + self.stream + self.copy + self.sync


@dataclass(frozen=True)
class Schedule:
    """One call of a program on the device: D device iterations of G micro-batches and an update each.

    `cycles` has one entry for each IPU of a replica; their totals are all `device_cycles`, because waiting
    counts as external sync. `shares` are the parts of that time by name and sum to 1. `main_cycle` and
    `update_cycles` are the times of one main cycle (zeros if there are too few micro-batches for any) and of
    one weight update; `pipeline_cycles` counts the cycles before each update. `executions` says how often each
    op (by node name) runs in a call.
    `limited_by` is one of "stage <k>", "stream", "pipeline fill and flush", "weight update", "inter-IPU copy".
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
    executions: Mapping[str, int]
