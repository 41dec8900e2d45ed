"""How far a modelled device time may be off, and why."""

from __future__ import annotations

from collections.abc import Iterable

from ipu_model.predict.calibration import BandConstants
from ipu_model.predict.links import ring_of
from ipu_model.predict.profile import ErrorBand, OpProfile
from ipu_model.predict.program import Execution, Program
from ipu_model.step import Step

# The index of `groups` among the arguments of aten.convolution.
_GROUPS = 8
# Families of formulas whose ops appear in no published row.
_UNCOVERED_FAMILIES = {"recurrent": "recurrent layers", "estimated": "ops whose cost is an estimate"}


def error_band(program: Program, ops: Iterable[OpProfile]) -> tuple[ErrorBand, str]:
    """Return the error band of the device time, and a sentence that explains a wide band ("" for the narrow one).

    A program gets the narrow band if published rows cover the way it runs and if its ops do a lot of work per exchange
    phase.
    """
    constants = program.calibration.band
    reason = _reason(program, ops, constants)
    if not reason:
        return ErrorBand(1 - constants.large_work, 1 + constants.large_work), ""
    return ErrorBand(constants.small_work_low, constants.small_work_high), reason


def _reason(program: Program, ops: Iterable[OpProfile], constants: BandConstants) -> str:
    ops = tuple(ops)
    uncovered = [*_uncovered(program), *_uncovered_families(ops)]
    if uncovered:
        return f"No published row covers {', '.join(uncovered)}: the error band is the wide one."
    sync_cycles = program.settings.device.sync_cycles
    work = phases = 0.0
    for op in ops:
        work += op.executions * op.cycles
        phases += op.executions * op.internal_sync / sync_cycles if sync_cycles else 0.0
    if work < constants.large_work_cycles_per_phase * phases:
        return (
            f"Each exchange phase has {work / phases:,.0f} cycles of work on average. For work this small the fixed "
            "costs of a step decide, which the model knows least: the error band is the wide one."
        )
    return ""


def _uncovered(program: Program) -> list[str]:
    """Return the features of a program that no published measurement covers."""
    locations = program.locations
    every = (locations.activations, locations.weights, locations.optimiser, locations.accumulators)
    found = []
    if not program.training:
        found.append("inference")
    if has_grouped_convolutions(program.step):
        found.append("grouped convolutions")
    if program.execution is Execution.INTERLEAVED:
        found.append("interleaved pipelines")
    if any(not each.on_chip for each in every):
        found.append("tensors in streaming memory")
    if any(each.sharded for each in every) and program.replicas > 1:
        found.append("replicated tensor sharding")
    if program.overlaps_input or program.overlaps_output:
        found.append("overlapped host transfers")
    if ring_of(program).groups > 1:
        found.append("replicas in several racks")
    if program.system.chip.name not in ("GC200", "Bow"):
        found.append(f"the chip {program.system.chip.name}")
    return found


def _uncovered_families(ops: Iterable[OpProfile]) -> list[str]:
    met = {op.family for op in ops}
    return [words for family, words in _UNCOVERED_FAMILIES.items() if family in met]


def has_grouped_convolutions(step: Step) -> bool:
    """Whether any convolution divides its channels into groups, as in ResNeXt and EfficientNet."""
    return any(op.kind == "convolution" and op.argument(_GROUPS, "groups", 1) != 1 for op in step.ops)
