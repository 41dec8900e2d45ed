"""Replicated tensor sharding: what it saves, and what an update takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from ipu_course import engine, show

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

__all__ = ["show_state_in_parts"]

KIB = 1024
STATE = "optimiser state"
WAYS: Mapping[str, Mapping[str, Any]] = {
    "on chip, whole": {},
    "on chip, in parts": {"optimiser_sharded": True},
    "off chip, whole": {"optimiser_off_chip": True},
    "off chip, in parts": {"optimiser_off_chip": True, "optimiser_sharded": True},
}


def show_state_in_parts(program: ModelledModule, replicas: int, machine: str) -> None:
    """Show the time of an update with state on and off the chip, whole and in parts, and what each replica holds."""
    if not program:
        print(engine.NOT_HERE)
        return
    profiles = {name: program.profile(replicas=replicas, machine=machine, **ways) for name, ways in WAYS.items()}
    show.table([
        {"optimiser state": name, "on each tile, modelled": f"{_state_bytes(profile) / KIB:.1f} KiB",
         "an update, modelled": f"{1e3 * profile.call_seconds:.1f} ms"}
        for name, profile in profiles.items()
    ], index="optimiser state")  # fmt: skip


def _state_bytes(profile: Profile) -> float:
    return max(dict(ipu.bytes_by_category).get(STATE, 0.0) for ipu in profile.memory)
