"""Two profiles side by side: what changed, by how much, and one line that says it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ipu_model.predict.profile import Profile
from ipu_model.predict.verdict import Verdict
from ipu_model.report.breakdown import PHASE_NAMES, fullest_ipu
from ipu_model.report.difference import moved_ops
from ipu_model.report.quantities import aligned, change, duration, percent, plain, short, whole

NAMES = ("before", "after")
_CLOSE = 0.005
_WIDEST_CELL = 40
_MOST_MOVED = 5
_OF_BOTH = {
    Verdict.FITS: "both fit",
    Verdict.CLOSE: "both are too close to call",
    Verdict.DOES_NOT_FIT: "neither fits",
}
OF_ONE = {
    Verdict.FITS: "fits",
    Verdict.CLOSE: "is too close to call",
    Verdict.DOES_NOT_FIT: "does not fit",
}
_WITHOUT_ROOM = " The speed of a program that does not fit is the speed that it would have on larger tiles."
Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Part:
    """A part of a comparison: a title, and rows of a name, both values and the change."""

    title: str
    rows: tuple[Row, ...]


def compare(before: Profile, after: Profile, names: Sequence[str] = NAMES) -> str:
    """Compare two profiles in a table of plain text that ends with a conclusion; all numbers are modelled."""
    every = parts(before, after)
    head = ("modelled", *names, "change")
    rows = [head, *(row for part in every for row in part.rows)]
    lines = aligned([[_cut(plain(cell)) for cell in row] for row in rows])
    text = [plain(f"{names[0]}: {_title(before)}"), plain(f"{names[1]}: {_title(after)}"), "", lines.pop(0)]
    for part in every:
        text += [part.title, *lines[: len(part.rows)]]
        lines = lines[len(part.rows) :]
    return "\n".join([*text, "", plain(conclusion(before, after, names))]) + "\n"


def parts(before: Profile, after: Profile) -> tuple[Part, ...]:
    """Return the parts of a comparison; options only where they differ."""
    moved = Part("IPU time of a sample: the largest changes", tuple(_most_moved(before, after)))
    return tuple(part for part in (*numbers(before, after), moved, differing_options(before, after)) if part.rows)


def numbers(before: Profile, after: Profile) -> tuple[Part, ...]:
    """Return the parts of a comparison that are modelled: throughput, cycles and memory."""
    found = (
        Part("throughput", tuple(_throughput(before, after))),
        Part("cycles of one call on the IPU that computes most", tuple(_phases(before, after))),
        Part("bytes of the fullest tile", tuple(_memory(before, after))),
    )
    return tuple(part for part in found if part.rows)


def differing_options(before: Profile, after: Profile) -> Part:
    """Return the options that differ."""
    return Part("options that differ", tuple(_options(before, after)))


def conclusion(before: Profile, after: Profile, names: Sequence[str] = NAMES) -> str:
    """Return how much faster it is, whether both fit and what limits, and what a speed without room means."""
    factor = after.samples_per_second / before.samples_per_second
    if abs(factor - 1) < _CLOSE:
        speed = f"{names[1]} is as fast as {names[0]}"
    elif factor > 1:
        speed = f"{names[1]} is {factor:.2f} x as fast as {names[0]}"
    else:
        speed = f"{names[1]} takes {1 / factor:.2f} x the time of {names[0]} for a sample"
    same = before.limited_by == after.limited_by
    limits = (
        f"still limited by: {after.limited_by}" if same else f"limited by: {before.limited_by}, then {after.limited_by}"
    )
    lacks_room = Verdict.DOES_NOT_FIT in (before.verdict, after.verdict)
    return f"Modelled end to end, {speed}; {_verdicts(before, after, names)}; {limits}." + _WITHOUT_ROOM * lacks_room


def _verdicts(before: Profile, after: Profile, names: Sequence[str]) -> str:
    if before.verdict is after.verdict:
        return _OF_BOTH[before.verdict]
    return f"{names[0]} {OF_ONE[before.verdict]}, {names[1]} {OF_ONE[after.verdict]}"


def _cut(cell: str) -> str:
    return cell if len(cell) <= _WIDEST_CELL else f"{cell[: _WIDEST_CELL - 3]}..."


def _title(profile: Profile) -> str:
    return f"{profile.name} on {profile.machine}"


def _throughput(before: Profile, after: Profile) -> Iterator[Row]:
    yield _rates("samples/s end to end", before.samples_per_second, after.samples_per_second)
    yield _rates("samples/s device alone", before.device_samples_per_second, after.device_samples_per_second)
    yield _plain("samples a call", whole(before.samples_per_call), whole(after.samples_per_call))
    for name, values in (
        ("time of a call", (before.call_seconds, after.call_seconds)),
        ("device time", (before.device_seconds_per_call, after.device_seconds_per_call)),
        ("host time", (before.host_seconds_per_call, after.host_seconds_per_call)),
    ):
        yield (name, duration(values[0]), duration(values[1]), change(*values))
    for share in dict.fromkeys((*before.shares, *after.shares)):
        values = before.shares.get(share, 0.0), after.shares.get(share, 0.0)
        texts = percent(values[0]), percent(values[1])
        if set(texts) != {percent(0.0)}:
            points = "same" if texts[0] == texts[1] else f"{100 * (values[1] - values[0]):+.1f} points"
            yield (f"share of {share}", *texts, points)
    yield _plain("limited by", before.limited_by, after.limited_by)


def _phases(before: Profile, after: Profile) -> Iterator[Row]:
    most = [max(profile.cycles, key=lambda cycles: cycles.on_tile_execute) for profile in (before, after)]
    for field, name in PHASE_NAMES.items():
        values = getattr(most[0], field), getattr(most[1], field)
        if any(values):
            yield (name, whole(values[0]), whole(values[1]), change(*values))


def _memory(before: Profile, after: Profile) -> Iterator[Row]:
    fullest = [profile.memory[fullest_ipu(profile)] for profile in (before, after)]
    held = [ipu.bytes_by_category for ipu in fullest]
    for name in dict.fromkeys((*held[0], *held[1])):
        values = held[0].get(name, 0.0), held[1].get(name, 0.0)
        if any(values):
            yield (name, whole(values[0]), whole(values[1]), change(*values))
    full = before.memory.max_tile_bytes, after.memory.max_tile_bytes
    yield ("fullest tile", whole(full[0]), whole(full[1]), change(*full))
    yield _plain("verdict", *(str(profile.verdict) for profile in (before, after)))


def _most_moved(before: Profile, after: Profile) -> Iterator[Row]:
    for each in moved_ops(before, after)[:_MOST_MOVED]:
        if each.change:
            name = f"{each.name}: {each.what}, {each.group}"
            name = name if len(name) <= _WIDEST_CELL else f"...{name[3 - _WIDEST_CELL :]}"
            yield (name, duration(each.before), duration(each.after), change(each.before, each.after))


def _options(before: Profile, after: Profile) -> Iterator[Row]:
    yield from _differing("machine", str(before.machine), str(after.machine))
    for name in dict.fromkeys((*before.options, *after.options)):
        yield from _differing(name, str(before.options.get(name, "-")), str(after.options.get(name, "-")))


def _differing(name: str, before: str, after: str) -> Iterator[Row]:
    if before != after:
        yield (name, before, after, "")


def _rates(name: str, before: float, after: float) -> Row:
    return (name, short(before), short(after), change(before, after))


def _plain(name: str, before: str, after: str) -> Row:
    return (name, before, after, "same" if before == after else "")
