"""The schedule of a program: its work, its order, and what it runs on."""

from __future__ import annotations

from ipu_model.batching import Keep
from ipu_model.errors import Error
from ipu_model.predict.costs import Costs
from ipu_model.program import Execution, Program
from ipu_model.recompute import Kept
from ipu_model.schedule.constants import pipeline_constants
from ipu_model.schedule.plan import Shape
from ipu_model.schedule.result import Schedule
from ipu_model.schedule.run import run
from ipu_model.schedule.streams import host_link
from ipu_model.schedule.timing import Conditions
from ipu_model.schedule.work import workload_of
from ipu_model.step import Phase


def schedule_of(program: Program, lowered: Costs, kept: Kept) -> Schedule:
    """Return the schedule of one call of a program, all times in tile-clock cycles.

    `lowered` are the costs of its ops, `kept` what its backward pass finds and what runs
    again (`kept_for_backward`). Sources of the formulas: hardware reference, sections D and E.

    Raises:
        Error: tensors are off chip where there is no streaming memory, or transfers are to overlap without I/O tiles
            or in a pipeline.
    """
    workload = workload_of(program, lowered, kept)
    return run(workload, shape_of(program), conditions_of(program), executions_of(program, kept))


def shape_of(program: Program) -> Shape:
    """Return the order of passes of a program; inference has no updates that would end a pipeline.

    Raises:
        Error: transfers are to overlap without I/O tiles, or in a pipeline.
    """
    stages = len(program.step.stages)
    batching, overlaps = program.batching, program.overlaps_input or program.overlaps_output
    if overlaps and not program.io_tiles:
        raise Error("Transfers beside the computation need tiles of their own: reserve I/O tiles, 32 to 192 of them.")
    if overlaps and stages > 1 and program.execution is not Execution.SHARDED:
        raise Error("Transfers cannot run beside the computation of a pipeline; they can with sharded execution.")
    return Shape(
        stages=stages,
        micro_batches=batching.accumulation if program.training else batching.steps,
        updates=batching.device_iterations if program.training else 1,
        training=program.training,
        execution=program.execution,
        overlaps=overlaps,
    )


def conditions_of(program: Program) -> Conditions:
    """Return what a program's machine and options say about the time of transfers."""
    system, batching = program.system, program.batching
    returns = program.returns
    every = returns.keep is Keep.ALL or (returns.keep is Keep.EVERY_N and returns.period == 1)
    return Conditions(
        host=host_link(program),
        copy_bytes_per_second=system.link_bytes_per_second * pipeline_constants().copy_link_share,
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


def executions_of(program: Program, kept: Kept) -> dict[str, int]:
    """Return how often each op runs in one call, by its name: once for a micro-batch, twice where it is recomputed."""
    steps = program.batching.steps
    return {op.name: steps * (1 + (op.phase is Phase.FORWARD and op.name in kept.again)) for op in program.step.ops}
