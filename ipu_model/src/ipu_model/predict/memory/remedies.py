"""Remedies for a program that does not fit into memory, chosen by what fills its fullest tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ipu_model.predict.memory import categories
from ipu_model.predict.profile import IpuMemory, Memory
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.step import FLOAT16, FLOAT32, DType

# The main contents of a full tile: activations, the temporary data of one op, parameters, or code.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "activations": (*categories.OF_ACTIVATIONS, categories.STREAMS),
    "temporaries": (categories.TEMPORARIES,),
    "parameters": categories.PARAMETERS,
    "code": categories.CODE,
}

# Moving blocks to another IPU pays if its fullest tile is emptier by this share of a tile, and not full itself.
_ROOM = 0.15


def remedies(memory: Memory, program: Program) -> list[str]:
    """Return the remedies, most promising first, without those that the program already uses.

    The order depends on what takes most of the fullest tile. For activations, recomputation and smaller micro-batches
    come first; for the temporary data of one op, its memory proportion and partials type; for parameters, their types
    and locations.
    """
    worst = max(memory, key=lambda m: m.max_tile_bytes)
    weights = {name: _weight(worst, members) for name, members in _GROUPS.items()}
    found = _better_split(memory, worst)
    for name in sorted(weights, key=lambda group: -weights[group])[:2]:
        found += _ADVICE[name](program, worst)
    return list(dict.fromkeys(found))


def _weight(memory: IpuMemory, members: tuple[str, ...]) -> float:
    return sum(memory.bytes_by_category.get(name, 0.0) for name in members)


def _better_split(memory: Memory, worst: IpuMemory) -> list[str]:
    """Return the advice to move blocks if another IPU has room for some."""
    emptiest = min(memory, key=lambda m: m.max_tile_bytes)
    emptier = emptiest.max_tile_bytes <= worst.max_tile_bytes - _ROOM * memory.tile_bytes
    if not emptier or emptiest.max_tile_bytes >= memory.tile_bytes:
        return []
    return [f"move blocks from IPU {worst.ipu} to IPU {emptiest.ipu}, which has room (poptorch.BeginBlock)"]


def _for_activations(program: Program, worst: IpuMemory) -> list[str]:
    found = []
    if program.training and program.recomputation is Recomputation.NONE:
        found.append("compute activations again in the backward pass (recomputation)")
    elif program.training:
        found.append("put poptorch.recomputationCheckpoint where tensors are small")
    if program.samples_per_micro_batch > 1:
        more = " with more gradient accumulation" if program.training else ""
        found.append(f"use a smaller micro-batch{more}")
    found += _half(program)
    if worst.bytes_by_category.get(categories.STASHES, 0.0) and program.execution is Execution.PIPELINED:
        found.append("give early stages less to stash: stage s of K keeps 2 (K - 1 - s) + 1 micro-batches")
    return found


def _for_temporaries(program: Program, worst: IpuMemory) -> list[str]:
    peak = max(worst.liveness, key=lambda step: step.bytes_on_tile, default=None)
    op = f" (it is fullest during {peak.name or peak.node})" if peak is not None else ""
    found = [f"lower the available memory proportion of IPU {worst.ipu}{op}"]
    if not program.settings.half_partials and _has(program, FLOAT16):
        found.append("use half partials (Options.Precision.setPartialsType)")
    return [*found, "serialise large matrix products (poptorch.serializedMatMul)"]


def _for_parameters(program: Program, worst: IpuMemory) -> list[str]:
    found = _half(program)
    spec, locations = program.optimiser, program.locations
    if program.training and spec is not None:
        if FLOAT32 in (spec.accum_dtype, spec.first_dtype):
            found.append("keep gradient accumulators and first moments in float16 (accum_type and its like)")
        if worst.bytes_by_category.get(categories.OPTIMISER_STATE, 0.0) and locations.optimiser.on_chip:
            found.append("keep optimiser state in streaming memory (Options.TensorLocations.setOptimizerLocation)")
        if program.replicas > 1 and not locations.optimiser.sharded:
            found.append("shard optimiser state over the replicas (useReplicatedTensorSharding)")
    return [*found, "use more IPUs, or share large layers out better"]


def _for_code(program: Program, worst: IpuMemory) -> list[str]:
    found = [
        "make blocks identical, so that they share one copy of their code (outlining), and use fewer distinct shapes"
    ]
    if min(program.settings.available_memory_proportion.values(), default=1.0) < 0.05:
        found.append("raise the available memory proportion: many small slices each need their own code")
    return found


def _half(program: Program) -> list[str]:
    return ["use half precision (model.half())"] if not _has(program, FLOAT16) else []


def _has(program: Program, dtype: DType) -> bool:
    return any(program.step.tensors[variable.tensor].dtype == dtype for variable in program.step.variables)


_ADVICE: Mapping[str, Callable[[Program, IpuMemory], list[str]]] = {
    "activations": _for_activations,
    "temporaries": _for_temporaries,
    "parameters": _for_parameters,
    "code": _for_code,
}
