"""What keeps a program from fitting: what fills its fullest tile, and how many IPUs its weights need at least."""

from __future__ import annotations

import math

from ipu_model.explore.split import modules_of
from ipu_model.predict.profile import IpuMemory, Profile
from ipu_model.predict.program import Program
from ipu_model.predict.remote import variables_of

_NAMED = 3
_KIB, _MIB = 1024, 1024**2


def binding_text(profile: Profile, program: Program) -> str:
    """Say in two or three sentences what keeps a profile from fitting."""
    worst = max(profile.memory, key=lambda each: each.max_tile_bytes)
    return " ".join([_fullest(worst, profile.memory.tile_bytes), *_weights(program)])


def _fullest(worst: IpuMemory, tile_bytes: int) -> str:
    largest = sorted(worst.categories, key=lambda each: -each.bytes_on_fullest_tile)[:_NAMED]
    named = ", ".join(f"{each.name} {each.bytes_on_fullest_tile / _KIB:,.0f} KiB" for each in largest)
    always = worst.always_live_bytes / tile_bytes
    text = (
        f"The fullest tile of IPU {worst.ipu} needs {worst.max_tile_bytes / _KIB:,.0f} KiB and has "
        f"{tile_bytes / _KIB:,.0f} KiB; most of it is filled by {named}."
    )
    return f"{text} Data that is always live takes {always:.0%} of the tile by itself." if always > 1 else text


def _weights(program: Program) -> list[str]:
    """Return the lower bounds that follow from the weights: of the IPUs, and of a module that no split divides."""
    chip = program.settings.device.chip
    one_ipu = chip.tiles * chip.tile_bytes
    found = []
    least = least_ipus(program)
    if least > program.ipus_per_replica:
        found.append(f"The weights alone fill {least} IPUs.")
    name, size = _largest_module(program)
    if size > one_ipu:
        found.append(
            f"The weights of {name or 'the model'} alone take {size / _MIB:,.0f} MiB, and one IPU has "
            f"{one_ipu / _MIB:,.0f} MiB: split that module."
        )
    return found


def least_ipus(program: Program) -> int:
    """Return how many IPUs the weights of a program fill if nothing else takes any memory."""
    chip = program.settings.device.chip
    return max(1, math.ceil(sum(each.weight for each in variables_of(program)) / (chip.tiles * chip.tile_bytes)))


def _largest_module(program: Program) -> tuple[str, float]:
    """Return the innermost module with the most bytes of weights of its own."""
    step = program.step
    tensor_of = {variable.name: variable.tensor for variable in step.variables}
    sizes: dict[str, float] = {}
    for variable in variables_of(program):
        readers = step.readers.get(tensor_of[variable.name], ())
        module = (modules_of(readers[0].scope) or ("",))[-1] if readers else ""
        sizes[module] = sizes.get(module, 0.0) + variable.weight
    return max(sizes.items(), key=lambda item: item[1], default=("", 0.0))
