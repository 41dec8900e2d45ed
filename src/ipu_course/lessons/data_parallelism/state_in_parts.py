"""Replicated tensor sharding over numbers of replicas: what it saves, and what an update takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ipu_course import engine, figures, show
from ipu_course.lessons.data_parallelism.scaling import REPLICAS

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


def show_state_in_parts(program: ModelledModule | None, replicas: Sequence[int], machine: str) -> None:
    """Show the time of an update with state on and off the chip, whole and in parts, and what each replica holds."""
    if not program:
        print(engine.NOT_HERE)
        return
    whole, *others = (
        [program.profile(replicas=count, machine=machine, **changes) for count in replicas] for changes in WAYS.values()
    )
    longer: dict[str, list[float | None]] = {
        name: [each.call_seconds / base.call_seconds - 1 for each, base in zip(profiles, whole)]
        for name, profiles in zip(list(WAYS)[1:], others)
    }
    words = "; ".join(f"{name} {values[-1]:.1%}" for name, values in longer.items() if values[-1] is not None)
    show.figure(
        figures.curves_figure(
            replicas, longer, REPLICAS, "longer than on chip, whole", "What an update costs (modelled)", log_x=True,
            percent=True, from_zero=True,
        ),
        "By how much an update takes longer than with the whole state on the chip: in parts on the chip hardly at all, "
        f"off the chip a lot if whole, and ever less in parts. Modelled with {replicas[-1]} replicas: {words}.",
    )  # fmt: skip
    show.table([
        {"replicas": count, "state, whole": _state(base), "state, in parts": _state(part),
         "all-reduce": _between(base), "in parts: reduce-scatter + all-gather": _between(part),
         "off chip, in parts": f"{away.memory.off_chip_bytes / 1e6:.0f} MB a replica"}
        for count, base, part, away in zip(replicas, whole, others[0], others[2])
    ], index="replicas")  # fmt: skip


def _state(profile: Profile) -> str:
    return f"{max(dict(ipu.bytes_by_category).get(STATE, 0.0) for ipu in profile.memory) / KIB:.1f} KiB a tile"


def _between(profile: Profile) -> str:
    return f"{1e3 * profile.device_seconds_per_call * profile.shares['collective']:.1f} ms"
