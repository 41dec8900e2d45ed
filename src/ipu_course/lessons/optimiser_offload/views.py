"""What moving the optimiser's state off the chip, or into parts on several replicas, saves and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Sequence

from ipu_course import engine, figures, show

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

__all__ = ["copies_share", "show_accumulations", "show_places", "show_sharding", "state_bytes"]

KIB, MEGA = 1024, 1e6
STATE = "optimiser state"


def copies_share(profile: Profile | None) -> float | None:
    """Per cent of the device time in which data goes to or comes from the memory outside the chip."""
    return None if not profile else 100 * profile.shares["offload"]


def state_bytes(states: Mapping[str, object], parameters: int) -> tuple[int, float]:
    """Tensors of state that a weight has, and bytes for each of so many ``parameters``.

    ``states`` is the "ipu_state" of an optimizer's state_dict(): names such as "Accl1___weight" to tensors. The
    count of steps, a single number, is left out.
    """
    found = {name: tensor for name, tensor in states.items() if name.startswith("Accl")}
    kinds = {name.partition("___")[0] for name in found}
    size = sum(tensor.numel() * tensor.element_size() for tensor in found.values())  # type: ignore[attr-defined]
    return len(kinds), size / parameters


def show_places(profiles: Mapping[str, Profile | None]) -> None:
    """Show programs that differ in where state lives: the fullest tile of every IPU, and memory and time."""
    named = {name: profile for name, profile in profiles.items() if profile}
    if not named:
        print(engine.NOT_HERE)
        return
    first = next(iter(named.values())).memory
    limit = first.tile_bytes / KIB
    kib = {name: [ipu.max_tile_bytes / KIB for ipu in profile.memory] for name, profile in named.items()}
    words = "; ".join(f"state {name} {' and '.join(f'{size:.0f}' for size in sizes)}" for name, sizes in kib.items())
    show.figure(
        figures.bars_figure(
            [f"IPU {ipu.ipu}" for ipu in first],
            {f"state {name}": sizes for name, sizes in kib.items()},
            "KiB on the fullest tile",
            "Where the optimiser's state lives (modelled)",
            form="{:.0f}",
            limit=(limit, f"a tile has {limit:.0f} KiB"),
        ),
        f"KiB on the fullest tile of each IPU, modelled: {words}. A tile has {limit:.0f} KiB.",
    )
    show.table([_place_row(name, profile) for name, profile in named.items()], index="state")


def _place_row(name: str, profile: Profile) -> dict[str, object]:
    row: dict[str, object] = {"state": name}
    for ipu in profile.memory:
        row[f"IPU {ipu.ipu}, fullest tile"] = f"{ipu.max_tile_bytes / KIB:.0f} KiB"
    row["fits"] = engine.fits_in_a_word(profile)
    row["off chip"] = f"{profile.memory.off_chip_bytes / MEGA:,.0f} MB"
    row["weight update every"] = f"{1e3 * profile.device_seconds_per_call:.1f} ms"
    row["copies"] = f"{profile.shares['offload']:.0%}"
    return row


def show_accumulations(modelled: ModelledModule | None, accumulations: Sequence[int]) -> None:
    """Show what copies of state take of a program's time, and by how much it is slower, against accumulation."""
    if not modelled:
        print(engine.NOT_HERE)
        return
    points = [
        tuple(modelled.profile(gradient_accumulation=count, optimiser_off_chip=off) for off in (False, True))
        for count in accumulations
    ]
    shares = [off.shares["offload"] for _, off in points]
    slower = [off.device_seconds_per_call / on.device_seconds_per_call - 1 for on, off in points]
    words = "; ".join(
        f"{count}: {share:.0%} and {more:.0%}" for count, share, more in zip(accumulations, shares, slower)
    )
    show.figure(
        figures.curves_figure(
            accumulations,
            {"copies of state, of the time": shares, "longer than with state on chip": slower},
            "gradient accumulation (micro-batches per weight update)",
            "of the time on the device",
            "State off chip: what it costs (modelled)",
            log_x=True,
            percent=True,
            from_zero=True,
        ),
        "Two lines fall as the accumulation grows: the share of the copies, and by how much an update takes longer "
        f"than with state on the chip. Modelled, by accumulation: {words}.",
    )
    show.table([
        {"accumulation": count, "on chip": _ms(on), "off chip": _ms(off), "longer by": f"{more:.0%}"}
        for count, (on, off), more in zip(accumulations, points, slower)
    ])  # fmt: skip


def show_sharding(modelled: ModelledModule | None, replicas: Sequence[int], machine: str) -> None:
    """Show the state on the fullest tile, whole and in parts, and the times of an update, for numbers of replicas."""
    if not modelled:
        print(engine.NOT_HERE)
        return
    rows: list[dict[str, object]] = []
    kib: dict[str, list[float | None]] = {"whole on each replica": [], "in parts": []}
    for count in replicas:
        whole, parts = (
            modelled.profile(replicas=count, optimiser_sharded=sharded, machine=machine) for sharded in (False, True)
        )
        both = modelled.profile(replicas=count, optimiser_sharded=True, optimiser_off_chip=True, machine=machine)
        for name, profile in zip(kib, (whole, parts)):
            kib[name].append(max(ipu.bytes_by_category[STATE] for ipu in profile.memory) / KIB)
        rows.append({
            "replicas": count, "on chip, whole": _ms(whole), "on chip, in parts": _ms(parts),
            "between replicas": f"{_between(whole):.1f} / {_between(parts):.1f} ms", "off chip, in parts": _ms(both),
        })  # fmt: skip
    labels = [f"{count} replica{'s' * (count > 1)}" for count in replicas]
    words = "; ".join(f"{label} {a:.0f} and {b:.0f}" for label, a, b in zip(labels, *kib.values()))
    show.figure(
        figures.bars_figure(
            labels, kib, "KiB of state on the fullest tile", "State in parts (modelled)", form="{:.0f}"
        ),
        f"KiB of optimiser state on the fullest tile, whole on each replica and in parts, modelled: {words}.",
    )
    show.table(rows, index="replicas")


def _ms(profile: Profile) -> str:
    return f"{1e3 * profile.device_seconds_per_call:.1f} ms"


def _between(profile: Profile) -> float:
    """Milliseconds of a weight update in which replicas exchange gradients and weights."""
    return 1e3 * profile.device_seconds_per_call * profile.shares["collective"]
