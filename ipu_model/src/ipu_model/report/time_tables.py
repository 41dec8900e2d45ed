"""HTML tables of times and cycles."""

from __future__ import annotations

from ipu_model.profiling.data import SPAN_KINDS, Profile
from ipu_model.report.breakdown import compute_share, phases
from ipu_model.report.markup import Cell, Number, table
from ipu_model.report.quantities import duration, percent, whole
from ipu_model.report.rows import device_rows, host_rows


def host(profile: Profile) -> str:
    """Return what host and device do in one call, with start and end."""
    rows: list[list[Cell]] = [
        [row.name, span.label or span.kind, _seconds(span.start), _seconds(span.end), _seconds(span.seconds)]
        for row in host_rows(profile.timeline)
        for span in row.spans
    ]
    rows.append(
        ["one call, end to end", "", _seconds(0.0), _seconds(profile.call_seconds), _seconds(profile.call_seconds)]
    )
    return table(("who", "what", "from", "to", "time"), rows, "Host and device in one call, modelled")


def shares(profile: Profile) -> str:
    """Return the parts of the device's time."""
    rows: list[list[Cell]] = [
        [name, _seconds(share * profile.device_seconds_per_call), Number(percent(share), share)]
        for name, share in sorted(profile.shares.items(), key=lambda item: -item[1])
        if share
    ]
    return table(("part", "time", "share"), rows, "Parts of the device's time, modelled") if rows else ""


def kinds(profile: Profile) -> str:
    """Return how long each resource of the device does what."""
    rows = device_rows(profile.timeline)
    used = {span.kind for row in rows for span in row.spans}
    order = [kind for kind in SPAN_KINDS if kind in used] + sorted(used - set(SPAN_KINDS))
    body: list[list[Cell]] = [
        [row.name, *(_seconds(sum(s.seconds for s in row.spans if s.kind == kind)) for kind in order)] for row in rows
    ]
    return table(("resource", *order), body, "Time by kind of work in one call, modelled") if rows else ""


def cycles(profile: Profile) -> str:
    """Return the phases of the execution trace for every IPU."""
    rows: list[list[Cell]] = [[p.name, *(Number(whole(c), c) for c in p.cycles)] for p in phases(profile)]
    rows.append(["total", *(Number(whole(c.total), c.total) for c in profile.cycles)])
    part = [compute_share(c) for c in profile.cycles]
    rows.append(["share of OnTileExecute", *(Number(percent(share), share) for share in part)])
    head = ("phase", *(f"IPU {ipu}" for ipu in range(len(profile.cycles))))
    return table(head, rows, "Cycles of one call by phase, modelled")


def _seconds(seconds: float) -> Number:
    return Number(duration(seconds), seconds)
