"""What the compiler says of a program that does not fit into memory, or that is too close to call, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ipu_model.errors import Error
from ipu_model.predict import profile
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.step import FLOAT16, FLOAT32

_CATEGORIES_NAMED = 5


def out_of_memory(memory: profile.Memory, program: Program) -> Error | None:
    """Return the error of compiling a program that clearly does not fit, with remedies; `None` for all others."""
    if memory.verdict is not profile.Verdict.DOES_NOT_FIT:
        return None
    worst = memory.fullest
    over = sum(tile > memory.tile_bytes for ipu in memory for tile in ipu.tiles)
    tiles = "1 tile is" if over == 1 else f"{over:,} tiles are"
    text = (
        f"Memory allocation error: the program does not fit, out of memory on tile {worst.fullest_tile} of IPU "
        f"{worst.ipu}: {worst.max_tile_bytes:,.0f} bytes used but tiles only have {memory.tile_bytes:,} bytes of "
        f"memory (modelled; {tiles} over). {_what_helps(memory, program, 'Does not fit')}"
    )
    # Poplar's exception as PopTorch names it (guide 6.1: always at compile time).
    return Error(text, type="poplar_graph_memory_allocation_error")


def note_on_memory(memory: profile.Memory, program: Program) -> str | None:
    """Return a warning if the model cannot tell whether a program fits; `None` if it can."""
    if memory.verdict is not profile.Verdict.CLOSE:
        return None
    worst, (low, high) = memory.fullest, profile.close_band()
    return (
        f"Memory is too close to call: tile {worst.fullest_tile} of IPU {worst.ipu} holds "
        f"{worst.max_tile_bytes:,.0f} of {memory.tile_bytes:,} bytes, {memory.share:.1%} (modelled; the model cannot "
        f"tell between {low:.1%} and {high:.1%} of a tile), so a device may run out of memory. "
        f"{_what_helps(memory, program, 'Too close to call')}"
    )


def _what_helps(memory: profile.Memory, program: Program, section: str) -> str:
    categories = sorted(memory.fullest.categories, key=lambda category: -category.bytes_on_fullest_tile)
    largest = (f"{c.name} {c.bytes_on_fullest_tile:,.0f}" for c in categories[:_CATEGORIES_NAMED])
    return (
        f"Most of that tile's bytes: {', '.join(largest)}. What usually helps: {'; '.join(remedies(memory, program))}. "
        f"The section '{section}' of the course's docs/errors.md explains this message."
    )


# Moving blocks to another IPU pays if its fullest tile is emptier by this share of a tile, and not full itself.
_EMPTIER = 0.15


def remedies(memory: profile.Memory, program: Program) -> list[str]:
    """Return remedies not yet used for what takes most of the fullest tile, the most promising first."""
    worst = memory.fullest
    bytes_of = worst.bytes_by_category
    groups = sorted(_REMEDIES, key=lambda names: -sum(bytes_of.get(name, 0.0) for name in names))
    advice = []
    emptiest = min(memory, key=lambda ipu: ipu.max_tile_bytes)
    emptier = emptiest.max_tile_bytes <= worst.max_tile_bytes - _EMPTIER * memory.tile_bytes
    if emptier and emptiest.max_tile_bytes < memory.tile_bytes:
        advice.append(f"move blocks from IPU {worst.ipu} to IPU {emptiest.ipu}, which has room (poptorch.BeginBlock)")
    for names in groups[:2]:
        advice += _REMEDIES[names](program, worst)
    return list(dict.fromkeys(advice))


def _for_activations(program: Program, worst: profile.IpuMemory) -> Iterator[str]:
    if program.training and program.recomputation is Recomputation.NONE:
        yield "compute activations again in the backward pass (recomputation)"
    elif program.training:
        yield "put poptorch.recomputationCheckpoint where tensors are small"
    if program.samples_per_micro_batch > 1:
        yield f"use a smaller micro-batch{' with more gradient accumulation' if program.training else ''}"
    yield from _half(program)
    if worst.bytes_by_category.get(profile.STASHES, 0.0) and program.execution is Execution.PIPELINED:
        yield "give early stages less to stash: stage s of K keeps 2 (K - 1 - s) + 1 micro-batches"


def _for_temporaries(program: Program, worst: profile.IpuMemory) -> Iterator[str]:
    peak = max(worst.liveness, key=lambda step: step.bytes_on_tile, default=None)
    op = f" (it is fullest during {peak.name or peak.node})" if peak is not None else ""
    yield f"lower the available memory proportion of IPU {worst.ipu}{op}"
    if not program.settings.half_partials and program.has_variables_of(FLOAT16):
        yield "use half partials (Options.Precision.setPartialsType)"
    yield "serialise large matrix products (poptorch.serializedMatMul)"


def _for_parameters(program: Program, worst: profile.IpuMemory) -> Iterator[str]:
    yield from _half(program)
    spec, locations = program.optimiser, program.locations
    if program.training and spec is not None:
        if FLOAT32 in (spec.accum_dtype, spec.first_dtype):
            yield "keep gradient accumulators and first moments in float16 (accum_type and its like)"
        if worst.bytes_by_category.get(profile.OPTIMISER_STATE, 0.0) and locations.optimiser.on_chip:
            yield "keep optimiser state in streaming memory (Options.TensorLocations.setOptimizerLocation)"
        if program.replicas > 1 and not locations.optimiser.sharded:
            yield "shard optimiser state over the replicas (useReplicatedTensorSharding)"
    yield "use more IPUs, or share large layers out better"


def _for_code(program: Program, worst: profile.IpuMemory) -> Iterator[str]:
    yield "make blocks identical, so that they share one copy of their code (outlining), and use fewer distinct shapes"
    if min(program.settings.available_memory_proportion.values(), default=1.0) < 0.05:
        yield "raise the available memory proportion: many small slices each need their own code"


def _half(program: Program) -> list[str]:
    return ["use half precision (model.half())"] if not program.has_variables_of(FLOAT16) else []


# Remedies by the main contents of a full tile: activations, the temporary data of one op, parameters, or code.
_REMEDIES: Mapping[tuple[str, ...], Callable[[Program, profile.IpuMemory], Iterator[str]]] = {
    (*profile.OF_ACTIVATIONS, profile.STREAMS): _for_activations,
    (profile.TEMPORARIES,): _for_temporaries,
    profile.PARAMETERS: _for_parameters,
    profile.CODE: _for_code,
}
