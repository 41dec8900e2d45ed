"""How far a modelled device time may be off: `data/error_bands.json`, which `validate --record` derives from rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from functools import lru_cache

import msgspec

from ipu_model.predict.calibration import BandConstants, read_text
from ipu_model.predict.links import ring_of
from ipu_model.predict.profile import ErrorBand, OpProfile
from ipu_model.predict.program import Execution, Program
from ipu_model.step import Step

BANDS = "error_bands.json"
# The index of `groups` among the arguments of aten.convolution.
_GROUPS = 8
# Families of formulas whose ops appear in no published row.
_UNCOVERED_FAMILIES = {"recurrent": "recurrent layers", "estimated": "ops whose cost is an estimate"}
_CONVOLUTIONS = ("convolution", "_convolution", "convolution_backward")
_BATCHED_PRODUCTS, _SOFTMAXES = ("bmm", "baddbmm"), ("_softmax", "_safe_softmax")
# No published row lies between 16 replicas or IPUs, which every other family has, and 64 (chosen, not fitted).
_MANY = 16
_MOSTLY = 0.5


class Family(str, Enum):
    """Programs of one kind: what is known of the model's error on one of them says something about the others."""

    CONVOLUTIONS = "training of convolutional networks"
    TRANSFORMERS = "training of transformers"
    INFERENCE = "inference"
    PRODUCTS = "matrix products"
    INDEXING = "lookups and updates by index"
    GROUPED = "grouped convolutions"
    SMALL = "little work at a time"
    MANY_REPLICAS = "more than 16 replicas"

    def __str__(self) -> str:
        return self.value


class FamilyBand(msgspec.Struct, frozen=True):
    """The band of one family: factors on modelled device time, the rows behind it, and the largest of their errors."""

    low: float
    high: float
    rows: int
    largest_error: float


class RatioErrors(msgspec.Struct, frozen=True):
    """How far ratios of published rows of programs that differ in one thing are off, and the rows `alone`: relative."""

    pairs: int
    median: float
    largest: float
    median_alone: float
    largest_alone: float


class KnownErrors(msgspec.Struct, frozen=True):
    """What `validate --record` derived from all rows; `ratios` by what the programs differ in, and of "all"."""

    families: Mapping[Family, FamilyBand]
    ratios: Mapping[str, RatioErrors]


@lru_cache(maxsize=1)
def known_errors() -> KnownErrors:
    return msgspec.json.decode(read_text(BANDS), type=KnownErrors)


def error_band(
    program: Program,
    ops: Iterable[OpProfile],
    shares: Mapping[str, float],
    bands: Mapping[Family, FamilyBand] | None = None,
) -> tuple[ErrorBand, str]:
    """Return the widest band of a program's families, wider if no row does the like, and a sentence on a wide one."""
    constants, ops = program.calibration.band, tuple(ops)
    known = known_errors().families if bands is None else bands
    families = _families(program, ops, constants)
    met = {op.family for op in ops}
    uncovered = _uncovered(program, families, shares)
    uncovered += [words for family, words in _UNCOVERED_FAMILIES.items() if family in met]
    uncovered += [str(family) for family in families if family not in known]
    own = [known[family] for family in families if family in known]
    low, high = min((band.low for band in own), default=1.0), max((band.high for band in own), default=1.0)
    reasons = []
    if uncovered:
        low, high = min(low, constants.without_rows_low), max(high, constants.without_rows_high)
        reasons.append(f"No published row covers {', '.join(uncovered)}: the error band is the wide one.")
    for family in families:
        if family in known and known[family].high > 1 + constants.narrow:
            rows = "one published row" if known[family].rows == 1 else f"{known[family].rows} published rows"
            reasons.append(
                f"The error band rests on {rows} of {family}: on today's errors of up to "
                f"{known[family].largest_error:.0%}, and on those of the day when each was first compared or of fits "
                "without it."
            )
    if Family.SMALL in families:
        reasons.append(
            f"Each exchange phase has {_cycles_per_phase(program, ops):,.0f} cycles of work on average. For work this "
            "small the fixed costs of a step decide, which the model knows least."
        )
    return ErrorBand(low, high), " ".join(reasons)


def _families(program: Program, ops: tuple[OpProfile, ...], constants: BandConstants) -> list[Family]:
    kinds = {op.kind for op in program.step.ops}
    indexing = sum(op.executions * op.cycles for op in ops if op.family == "embedding")
    if indexing > _MOSTLY * sum(op.executions * op.cycles for op in ops):
        families = [Family.INDEXING]
    elif not program.training:
        families = [Family.INFERENCE]
    elif kinds.intersection(_BATCHED_PRODUCTS) and kinds.intersection(_SOFTMAXES):
        families = [Family.TRANSFORMERS]
    else:
        families = [Family.CONVOLUTIONS if kinds.intersection(_CONVOLUTIONS) else Family.PRODUCTS]
    if has_grouped_convolutions(program.step):
        families.append(Family.GROUPED)
    if program.replicas > _MANY:
        families.append(Family.MANY_REPLICAS)
    if _cycles_per_phase(program, ops) < constants.large_work_cycles_per_phase:
        families.append(Family.SMALL)
    return families


def _cycles_per_phase(program: Program, ops: Iterable[OpProfile]) -> float:
    """Return the cycles of all ops for each exchange phase; infinite if there is none."""
    sync_cycles = program.settings.device.sync_cycles
    work = phases = 0.0
    for op in ops:
        work += op.executions * op.cycles
        phases += op.executions * op.internal_sync / sync_cycles if sync_cycles else 0.0
    return work / phases if phases else math.inf


def _uncovered(program: Program, families: Collection[Family], shares: Mapping[str, float]) -> list[str]:
    locations, chip = program.locations, program.system.chip.name
    sharded = any(place.sharded for place in (locations.activations, locations.weights, locations.accumulators))
    features = {
        "inference with grouped convolutions": not program.training and has_grouped_convolutions(program.step),
        f"{program.execution.value} execution over several IPUs": (
            program.execution is not Execution.PIPELINED and len(program.step.ipus) > 1
        ),
        "a large share of the time for tensors in streaming memory": (
            shares.get("offload", 0.0) > program.calibration.band.small_share
        ),
        "sharding of more than the optimiser's state over replicas": sharded and program.replicas > 1,
        f"training of transformers on more than {_MANY} IPUs": (
            Family.TRANSFORMERS in families and program.replicas * program.ipus_per_replica > _MANY
        ),
        "overlapped host transfers": program.overlaps_input or program.overlaps_output,
        "replicas in several racks": ring_of(program).groups > 1,
        f"{'training' if program.training else 'inference'} on the chip {chip}": (
            chip not in ("GC200", "Bow") and (program.training or chip != "C600")
        ),
    }
    return [feature for feature, is_used in features.items() if is_used]


def has_grouped_convolutions(step: Step) -> bool:
    return any(op.kind == "convolution" and op.argument(_GROUPS, "groups", 1) != 1 for op in step.ops)
