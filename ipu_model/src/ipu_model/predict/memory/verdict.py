"""Whether a program fits into its tiles: yes, no, or too close to call."""

from __future__ import annotations

from enum import Enum

from ipu_model.errors import Error
from ipu_model.predict.calibration import MemoryConstants, calibrated
from ipu_model.predict.memory.categories import CODE
from ipu_model.predict.memory.remedies import remedies
from ipu_model.predict.profile import IpuMemory, Memory
from ipu_model.predict.program import Program

ERROR_TYPE = "poplar_graph_memory_allocation_error"
"""The class of Poplar's exception as PopTorch names it (guide 6.1: always at compile time)."""

_CATEGORIES_NAMED = 5


class Verdict(str, Enum):
    """What the model says about fitting; `CLOSE` is all that the model cannot be sure of."""

    FITS = "fits"
    CLOSE = "too close to call"
    DOES_NOT_FIT = "does not fit"


def verdict_on(memory: Memory, constants: MemoryConstants | None = None) -> Verdict:
    """Return whether the fullest tile holds its data, with the margins of `constants` (default: the calibrated ones).

    Only a program that exceeds the memory by more than the margin does not fit: refusing a program that would run on a
    device is worse than only warning of one that would not. Code is the least certain part of the model, so half of the
    code beyond that of the one published profile does not count.
    """
    constants = constants or calibrated().memory
    if any(_surely_wanted(ipu, constants) > memory.tile_bytes * (1.0 + constants.refusal_margin) for ipu in memory):
        return Verdict.DOES_NOT_FIT
    fits = memory.max_tile_bytes <= memory.tile_bytes * (1.0 - constants.uncertainty)
    return Verdict.FITS if fits else Verdict.CLOSE


def _surely_wanted(ipu: IpuMemory, constants: MemoryConstants) -> float:
    """Return the bytes of the fullest tile, less the uncertain part of large code."""
    code = sum(each.bytes_on_fullest_tile for each in ipu.categories if each.name in CODE)
    return ipu.max_tile_bytes - constants.code_uncertainty * max(0.0, code - constants.published_code_bytes)


def out_of_memory(memory: Memory, program: Program) -> Error | None:
    """Return the error of compiling a program that clearly does not fit; `None` for all others.

    It names the fullest tile, its bytes needed and available, the largest categories, and the remedies.
    """
    if verdict_on(memory, program.calibration.memory) is not Verdict.DOES_NOT_FIT:
        return None
    worst = _worst(memory)
    over = sum(tile > memory.tile_bytes for each in memory for tile in each.tiles)
    text = (
        f"Memory allocation error: out of memory on tile {worst.fullest_tile} of IPU {worst.ipu}: "
        f"{worst.max_tile_bytes:,.0f} bytes used but tiles only have {memory.tile_bytes:,} bytes of memory "
        f"(modelled, {_band(program)}; {_tiles(over)} over). {_largest(worst)} {_advice(memory, program)}"
    )
    return Error(text, type=ERROR_TYPE)


def note_on_memory(memory: Memory, program: Program) -> str | None:
    """Return a warning if the model cannot tell whether a program fits; `None` if it can."""
    if verdict_on(memory, program.calibration.memory) is not Verdict.CLOSE:
        return None
    worst = _worst(memory)
    return (
        f"Memory is too close to call: tile {worst.fullest_tile} of IPU {worst.ipu} holds "
        f"{worst.max_tile_bytes:,.0f} of {memory.tile_bytes:,} bytes (modelled, {_band(program)}), so a device may run "
        f"out of memory. {_largest(worst)} {_advice(memory, program)}"
    )


def _worst(memory: Memory) -> IpuMemory:
    return max(memory, key=lambda each: each.max_tile_bytes)


def _band(program: Program) -> str:
    return f"±{program.calibration.memory.uncertainty:.0%}"


def _tiles(count: int) -> str:
    return "1 tile is" if count == 1 else f"{count:,} tiles are"


def _largest(memory: IpuMemory) -> str:
    largest = sorted(memory.categories, key=lambda each: -each.bytes_on_fullest_tile)[:_CATEGORIES_NAMED]
    named = ", ".join(f"{each.name} {each.bytes_on_fullest_tile:,.0f}" for each in largest)
    return f"Most of that tile's bytes: {named}."


def _advice(memory: Memory, program: Program) -> str:
    return f"What usually helps: {'; '.join(remedies(memory, program))}."
