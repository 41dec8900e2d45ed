"""What it saves to share an optimiser's state out over replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from ipu_course import engine, show
from ipu_course.figures.bars import bars_figure

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

KIB = 1024
STATE = "optimiser state"


def show_sharding(program: ModelledModule, replicas: Sequence[int], machine: str) -> None:
    """Show the state on the fullest tile, whole and in parts, and the time of an update, for numbers of replicas."""
    if program is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    kib: dict[str, list[float]] = {"whole on each replica": [], "in parts": []}
    rows: list[dict[str, object]] = []
    for count in replicas:
        whole, parts, streamed, both = (
            program.profile(replicas=count, machine=machine, optimiser_sharded=sharded, optimiser_off_chip=off)
            for off in (False, True)
            for sharded in (False, True)
        )
        kib["whole on each replica"].append(state_kib(whole))
        kib["in parts"].append(state_kib(parts))
        rows.append({
            "replicas (modelled)": count, "on chip, whole": _cell(whole), "on chip, in parts": _cell(parts),
            "off chip, whole": _cell(streamed), "off chip, in parts": _cell(both),
        })  # fmt: skip
    labels = [f"{count} replicas" for count in replicas]
    words = "; ".join(f"{label} {a:.0f} and {b:.0f}" for label, a, b in zip(labels, *kib.values()))
    show.figure(
        bars_figure(labels, kib, "KiB of state on the fullest tile", "State in parts (modelled)", form="{:.0f}"),
        "The more replicas share the state, the less of it each one keeps.",
        f"KiB of optimiser state on the fullest tile, whole on each replica and in parts, modelled: {words}.",
    )
    show.table(rows, index="replicas (modelled)")


def state_kib(profile: Profile) -> float:
    """Return the most KiB of optimiser state that a fullest tile has."""
    return max(ipu.bytes_by_category.get(STATE, 0.0) for ipu in profile.memory) / KIB


def _cell(profile: Profile) -> str:
    return f"{1e3 * profile.device_seconds_per_call:.1f} ms, {engine.memory_verdict(profile)}"
