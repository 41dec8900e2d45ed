"""What the compiler says of a program that does not fit into memory, or that is too close to call."""

from __future__ import annotations

from ipu_model.errors import Error
from ipu_model.predict.memory.remedies import remedies
from ipu_model.predict.profile import IpuMemory, Memory
from ipu_model.predict.program import Program
from ipu_model.predict.verdict import Verdict, close_band

ERROR_TYPE = "poplar_graph_memory_allocation_error"
"""The class of Poplar's exception as PopTorch names it (guide 6.1: always at compile time)."""

_CATEGORIES_NAMED = 5


def out_of_memory(memory: Memory, program: Program) -> Error | None:
    """Return the error of compiling a program that clearly does not fit; `None` for all others.

    It names the fullest tile, its bytes needed and available, the largest categories, and the remedies.
    """
    if memory.verdict is not Verdict.DOES_NOT_FIT:
        return None
    worst = _worst(memory)
    over = sum(tile > memory.tile_bytes for each in memory for tile in each.tiles)
    text = (
        f"Memory allocation error: the program does not fit, out of memory on tile {worst.fullest_tile} of IPU "
        f"{worst.ipu}: {worst.max_tile_bytes:,.0f} bytes used but tiles only have {memory.tile_bytes:,} bytes of "
        f"memory (modelled; {_tiles(over)} over). {_largest(worst)} {_advice(memory, program)} "
        f"{_explained('Does not fit')}"
    )
    return Error(text, type=ERROR_TYPE)


def note_on_memory(memory: Memory, program: Program) -> str | None:
    """Return a warning if the model cannot tell whether a program fits; `None` if it can."""
    if memory.verdict is not Verdict.CLOSE:
        return None
    worst = _worst(memory)
    return (
        f"Memory is too close to call: tile {worst.fullest_tile} of IPU {worst.ipu} holds "
        f"{worst.max_tile_bytes:,.0f} of {memory.tile_bytes:,} bytes, {_share(memory)} (modelled; {_band()}), so a "
        f"device may run out of memory. {_largest(worst)} {_advice(memory, program)} "
        f"{_explained('Too close to call')}"
    )


def _worst(memory: Memory) -> IpuMemory:
    return max(memory, key=lambda each: each.max_tile_bytes)


def _share(memory: Memory) -> str:
    return f"{memory.max_tile_bytes / memory.tile_bytes:.1%}"


def _band() -> str:
    low, high = close_band()
    return f"the model cannot tell between {low:.1%} and {high:.1%} of a tile"


def _tiles(count: int) -> str:
    return "1 tile is" if count == 1 else f"{count:,} tiles are"


def _largest(memory: IpuMemory) -> str:
    largest = sorted(memory.categories, key=lambda each: -each.bytes_on_fullest_tile)[:_CATEGORIES_NAMED]
    named = ", ".join(f"{each.name} {each.bytes_on_fullest_tile:,.0f}" for each in largest)
    return f"Most of that tile's bytes: {named}."


def _advice(memory: Memory, program: Program) -> str:
    return f"What usually helps: {'; '.join(remedies(memory, program))}."


def _explained(section: str) -> str:
    return f"The section '{section}' of the course's docs/errors.md explains this message."
