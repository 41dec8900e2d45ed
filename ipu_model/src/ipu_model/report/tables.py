"""The tables of a page that no script draws: times and cycles, memory, options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ipu_model.predict.band import family_bands
from ipu_model.predict.profile import SPAN_KINDS, Profile
from ipu_model.report.breakdown import (
    categories,
    compute_share,
    device_rows,
    host_rows,
    phases,
)
from ipu_model.report.quantities import duration, percent, size, whole


@dataclass(frozen=True)
class Number:
    """A cell with a number: how it reads, and the value that a table is sorted by."""

    shown: str
    value: float


Cell = str | Number


@dataclass(frozen=True)
class Table:
    """A table with a caption: first cells of rows are headings, numbers stand to the right."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]

    def has_numbers(self, column: int) -> bool:
        """Whether any cell of a column is a number."""
        return any(isinstance(row[column], Number) for row in self.rows)


def host(profile: Profile) -> Table:
    """Return what host and device do in one call, with start and end."""
    rows: list[list[Cell]] = [
        [row.name, span.label or span.kind, _seconds(span.start), _seconds(span.end), _seconds(span.seconds)]
        for row in host_rows(profile.timeline)
        for span in row.spans
    ]
    call = _seconds(profile.call_seconds)
    rows.append(["one call, end to end", "", _seconds(0.0), call, call])
    return Table("Host and device in one call, modelled", ("who", "what", "from", "to", "time"), rows)


def shares(profile: Profile) -> Table:
    """Return the parts of the device's time."""
    rows: list[list[Cell]] = [
        [name, _seconds(share * profile.device_seconds_per_call), _share(share)]
        for name, share in sorted(profile.shares.items(), key=lambda item: -item[1])
        if share
    ]
    return Table("Parts of the device's time, modelled", ("part", "time", "share"), rows)


def kinds(profile: Profile) -> Table:
    """Return how long each resource of the device does what."""
    rows = device_rows(profile.timeline)
    used = {span.kind for row in rows for span in row.spans}
    order = [kind for kind in SPAN_KINDS if kind in used] + sorted(used - set(SPAN_KINDS))
    body: list[list[Cell]] = [
        [row.name, *(_seconds(sum(s.seconds for s in row.spans if s.kind == kind)) for kind in order)] for row in rows
    ]
    return Table("Time by kind of work in one call, modelled", ("resource", *order), body)


def cycles(profile: Profile) -> Table:
    """Return the phases of the execution trace for every IPU."""
    rows: list[list[Cell]] = [[phase.name, *map(_whole, phase.cycles)] for phase in phases(profile)]
    rows.append(["total", *(_whole(each.total) for each in profile.cycles)])
    rows.append(["share of OnTileExecute", *(_share(compute_share(each)) for each in profile.cycles)])
    head = ("phase", *(f"IPU {ipu}" for ipu in range(len(profile.cycles))))
    return Table("Cycles of one call by phase, modelled", head, rows)


def tiles(profile: Profile) -> Table:
    """Return how full the tiles of each IPU are."""
    limit = profile.memory.tile_bytes
    rows: list[list[Cell]] = []
    for memory in profile.memory:
        mean = memory.total_bytes / max(1, len(memory.tiles))
        over = sum(count > limit for count in memory.tiles)
        rows.append([
            f"IPU {memory.ipu}", _whole(memory.max_tile_bytes), _share(memory.max_tile_bytes / limit),
            Number(str(memory.fullest_tile), memory.fullest_tile), _whole(mean),
            _whole(min(memory.tiles, default=0.0)), _whole(over), _size(memory.total_bytes),
        ])  # fmt: skip
    head = (
        "IPU", "fullest tile", "of the limit", "which tile", "mean tile", "emptiest tile", "tiles above the limit",
        "all tiles",
    )  # fmt: skip
    return Table(f"Bytes of the tiles, modelled; a tile holds {whole(limit)}", head, rows)


def memory_categories(profile: Profile) -> Table:
    """Return what the fullest tile of each IPU holds."""
    rows: list[list[Cell]] = [
        [
            each.name,
            "always" if each.always_live else "at the peak",
            *map(_whole, each.bytes_on_fullest_tile),
            _size(each.total_bytes),
        ]
        for each in categories(profile)
    ]
    fullest = [_whole(memory.max_tile_bytes) for memory in profile.memory]
    rows.append(["fullest tile", "", *fullest, _size(sum(memory.total_bytes for memory in profile.memory))])
    head = ("category", "live", *(f"IPU {memory.ipu}" for memory in profile.memory), "all tiles")
    return Table("Bytes of the fullest tile by category, modelled", head, rows)


def families() -> Table:
    """Return how far the model was off on published programs, by family of programs."""
    rows: list[list[Cell]] = [
        [
            str(family),
            _whole(band.rows),
            _share(band.largest_error),
            Number(f"{band.low:g} to {band.high:g}", band.high),
        ]
        for family, band in family_bands().items()
    ]
    head = ("programs", "published rows", "largest error", "hardware takes, times the modelled time")
    return Table("What published measurements leave open, by family", head, rows)


def options(profile: Profile) -> Sequence[Table]:
    """Return the settings that were modelled, if any are known, and the machine."""
    machine = profile.machine
    numbers = [
        ("name", f"{machine.name}: {machine.title}"), ("IPUs", f"{machine.ipus} x {machine.chip}"),
        ("tiles of an IPU", whole(machine.tiles)), ("bytes of a tile", whole(machine.tile_bytes)),
        ("clock", f"{machine.clock_hz / 1e9:g} GHz"),
    ]  # fmt: skip
    found = [Table("On which machine", ("number", "value"), numbers)]
    if profile.options:
        settings = [(name, str(value)) for name, value in profile.options.items()]
        found.insert(0, Table("What was modelled", ("option", "value"), settings))
    return found


def _seconds(seconds: float) -> Number:
    return Number(duration(seconds), seconds)


def _share(share: float) -> Number:
    return Number(percent(share), share)


def _whole(count: float) -> Number:
    return Number(whole(count), count)


def _size(count: float) -> Number:
    return Number(size(count), count)
