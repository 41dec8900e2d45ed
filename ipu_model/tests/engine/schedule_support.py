"""What the tests of schedules share: work made up of plain numbers, and a machine on which little else costs time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from ipu_model.predict.calibration import StreamConstants
from ipu_model.predict.costs import costs_of
from ipu_model.predict.hardware import system_named
from ipu_model.predict.links import HostLink
from ipu_model.predict.order import Shape, order_of, rounds_of
from ipu_model.predict.profile import PhaseCycles
from ipu_model.predict.program import Execution, Program
from ipu_model.predict.time import Conditions, DeviceTime, run, time_of
from ipu_model.predict.work import StageWork, Workload

M2000 = system_named("M2000")
# Rates that make cycles of bytes: at 1 GHz, a transfer of b bytes takes b cycles of each phase.
CLOCK = 1e9
UNIT_RATES = StreamConstants(1e9, 1e9, 1e9, 0.0)


def computing(cycles: float) -> PhaseCycles:
    return PhaseCycles(on_tile_execute=cycles)


@dataclass(frozen=True)
class Times:
    """One stage: cycles of its passes, and the cycles that its transfers take."""

    forward: float = 1.0
    backward: float = 1.0
    recompute: float = 0.0
    inputs: float = 0.0
    outputs: float = 0.0
    on: float = 0.0
    back: float = 0.0
    ipu: int | None = None

    @property
    def behind(self) -> float:
        """The cycles of everything in the backward pass."""
        return self.recompute + self.backward


def workload(times: Sequence[Times], update: Sequence[float] = (), *, in_turn: bool = False) -> Workload:
    """Return work of these stages, each on an IPU of its own unless said otherwise; `update` by IPU."""
    stages = tuple(
        StageWork(
            k, k if t.ipu is None else t.ipu, computing(t.forward), computing(t.recompute), computing(t.backward),
            t.inputs, t.outputs, t.on, t.back,
        )
        for k, t in enumerate(times)
    )  # fmt: skip
    updates = {ipu: computing(cycles) for ipu, cycles in enumerate(update)}
    return Workload(stages, updates, max(len(update), *(stage.ipu + 1 for stage in stages)), updates_in_turn=in_turn)


def conditions(**changes: Any) -> Conditions:
    """Return conditions in which transfers take a cycle per byte and phase, and synchronising takes none."""
    chip = replace(M2000.chip, clock_hz=CLOCK)
    system = replace(
        M2000, chip=chip, host_to_device_bytes_per_second=1e15, device_to_host_bytes_per_second=1e15
    )  # a host link that no number of IPUs fills
    plain = Conditions(
        HostLink(system, UNIT_RATES), copy_bytes_per_second=1e9, sync_cycles=0.0, clock_hz=CLOCK, returns_all=True
    )
    return replace(plain, **changes)


def scheduled(times: Sequence[Times], micro_batches: int, *, updates: int = 1, training: bool = True,
              execution: Execution = Execution.PIPELINED, update: Sequence[float] = (), overlaps: bool = False,
              in_turn: bool = False, **changes: Any) -> DeviceTime:  # fmt: skip
    """Return the schedule of such stages."""
    shape = Shape(len(times), micro_batches, updates, training, execution, overlaps)
    return run(workload(times, update, in_turn=in_turn), rounds_of(shape), conditions(**changes), training=training)


def profiled(program: Program) -> DeviceTime:
    """Return the schedule of a program, as profiling makes it."""
    return time_of(program, costs_of(program.step, program.settings), order_of(program))


CYCLES = st.integers(0, 1000).map(float)


@st.composite
def stages(draw: st.DrawFn, most: int = 5, *, on_ipus: bool = False, transfers: bool = True) -> list[Times]:
    """Draw stages; `on_ipus`: several may share an IPU, as a pipeline that comes back to one has it."""
    count = draw(st.integers(1, most))
    extra = CYCLES if transfers else st.just(0.0)
    return [
        Times(
            draw(CYCLES) + 1, draw(CYCLES) + 1, draw(CYCLES), draw(extra), draw(extra), draw(extra), draw(extra),
            draw(st.integers(0, count - 1)) if on_ipus else k,
        )
        for k in range(count)
    ]  # fmt: skip
