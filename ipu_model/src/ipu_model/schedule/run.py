"""From work and conditions to a schedule."""

from __future__ import annotations

from collections.abc import Mapping

from ipu_model.schedule.account import Account
from ipu_model.schedule.call import call_of
from ipu_model.schedule.plan import Shape
from ipu_model.schedule.result import Schedule, StageTime
from ipu_model.schedule.segments import cycles_of, length
from ipu_model.schedule.timeline import timeline_of
from ipu_model.schedule.timing import Conditions, Timing
from ipu_model.schedule.work import Workload


def run(
    workload: Workload, shape: Shape, conditions: Conditions, executions: Mapping[str, int] | None = None
) -> Schedule:
    """Return the schedule of one call; its cost does not depend on how many micro-batches and updates there are."""
    call = call_of(shape, Timing(workload, conditions))
    account, times = Account(call), stage_times(workload)
    return Schedule(
        cycles=account.cycles,
        device_cycles=account.device_cycles,
        timeline=timeline_of(call, conditions.clock_hz, "update" if shape.training else "round"),
        shares=account.shares,
        stage_times=times,
        main_cycle=call.main_cycle,
        update_cycles=cycles_of(call.update),
        pipeline_cycles=call.rounds[0].cycles,
        limited_by=account.limited_by(slowest_stage(times)),
        executions=dict(executions or {}),
    )


def stage_times(workload: Workload) -> tuple[StageTime, ...]:
    """Return the cycles of every stage for one micro-batch."""
    return tuple(
        StageTime(s.index, s.ipu, length(s.forward), length(s.recompute), length(s.backward)) for s in workload.stages
    )


def slowest_stage(times: tuple[StageTime, ...]) -> int:
    """Return the stage with most work on the IPU with most work."""
    by_ipu: dict[int, float] = {}
    for time in times:
        by_ipu[time.ipu] = by_ipu.get(time.ipu, 0.0) + time.total
    busiest = max(by_ipu, key=by_ipu.__getitem__)
    return max((time for time in times if time.ipu == busiest), key=lambda time: time.total).stage
