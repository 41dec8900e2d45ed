"""What changed between two profiles: IPU time of a sample by part, module and op, and memory by category and tensor.

Times are of one sample, so that programs with other batches, replicas or numbers of IPUs compare: the seconds of one
IPU that a sample takes, summed over all IPUs that work on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ipu_model.predict.profile import IpuMemory, Profile
from ipu_model.report.breakdown import fullest_ipu
from ipu_model.report.efficiency import cycles_spent
from ipu_model.report.module_tree import what_of

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A number that is a whole part of a path: the place of a layer in a list."""


@dataclass(frozen=True)
class Moved:
    """A number before and after: seconds or bytes of `name`, `what` of it and in which `group` (a pass, a category)."""

    name: str
    before: float
    after: float
    what: str = ""
    group: str = ""

    @property
    def change(self) -> float:
        """The number after minus the number before."""
        return self.after - self.before


def moved_parts(before: Profile, after: Profile) -> tuple[Moved, ...]:
    """Return the IPU time of a sample by what the cycles are spent on, in the order of `cycles_spent`."""
    held = [
        {part.name: part.cycles * _seconds_a_sample(profile) for part in cycles_spent(profile)}
        for profile in (before, after)
    ]
    return _together(*held)


def moved_modules(before: Profile, after: Profile) -> tuple[Moved, ...]:
    """Return the IPU time of a sample by module, layers of one list together, largest change first."""
    return _sorted(_together(*(_by_module(profile) for profile in (before, after))))


def moved_ops(before: Profile, after: Profile) -> tuple[Moved, ...]:
    """Return the IPU time of a sample by module, op and pass, layers of one list together, largest change first."""
    held = [_by_op(profile) for profile in (before, after)]
    return _sorted(
        Moved(module, held[0].get(key, 0.0), held[1].get(key, 0.0), what, name)
        for key in dict.fromkeys((*held[0], *held[1]))
        for module, what, name in (key,)
    )


def moved_categories(before: Profile, after: Profile) -> tuple[Moved, ...]:
    """Return the bytes of the fullest tile of all IPUs by category, largest change first."""
    held = [
        {each.name: each.bytes_on_fullest_tile for each in _fullest(profile).categories} for profile in (before, after)
    ]
    return _sorted(_together(*held))


def moved_tensors(before: Profile, after: Profile) -> tuple[Moved, ...]:
    """Return the bytes of tensors on the fullest tile of all IPUs at the peak, largest change first."""
    held = [_by_tensor(profile) for profile in (before, after)]
    return _sorted(
        Moved(name, held[0].get(key, 0.0), held[1].get(key, 0.0), group=category)
        for key in dict.fromkeys((*held[0], *held[1]))
        for name, category in (key,)
    )


def without_numbers(path: str) -> str:
    """Return the path of a module with a star for each place in a list: "layers.*.norm" for "layers.7.norm"."""
    return _NUMBER.sub("*", path)


def _seconds_a_sample(profile: Profile) -> float:
    """Return what one cycle of one IPU of a replica, in every call, adds to the IPU time of a sample."""
    return profile.replicas / (profile.machine.clock_hz * profile.samples_per_call)


def _by_module(profile: Profile) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for (module, _, _), seconds in _by_op(profile).items():
        found[module] = found.get(module, 0.0) + seconds
    return found


def _by_op(profile: Profile) -> Mapping[tuple[str, str, str], float]:
    factor = _seconds_a_sample(profile)
    found: dict[tuple[str, str, str], float] = {}
    for op in profile.work:
        module = without_numbers(op.scope) or "(the model itself)"
        again = op.cycles * op.recomputations
        for name, cycles in ((op.phase, op.cycles_per_call - again), ("recompute", again)):
            if cycles:
                key = module, without_numbers(what_of(op)), name
                found[key] = found.get(key, 0.0) + cycles * factor
    return found


def _by_tensor(profile: Profile) -> Mapping[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for each in _fullest(profile).live_at_peak:
        key = without_numbers(each.name), each.category
        found[key] = found.get(key, 0.0) + each.bytes_on_fullest_tile
    return found


def _fullest(profile: Profile) -> IpuMemory:
    return profile.memory[fullest_ipu(profile)]


def _together(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Moved, ...]:
    return tuple(Moved(name, before.get(name, 0.0), after.get(name, 0.0)) for name in dict.fromkeys((*before, *after)))


def _sorted(moved: Iterable[Moved]) -> tuple[Moved, ...]:
    return tuple(sorted(moved, key=lambda each: -abs(each.change)))
