"""Two profiles side by side, as text and as a page; times of parts are IPU seconds of one sample, so they compare."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ipu_model.predict.profile import Profile, Verdict
from ipu_model.report.breakdown import PHASE_NAMES
from ipu_model.report.findings import cycles_spent, setting
from ipu_model.report.looks import SPENT_LOOKS, Look
from ipu_model.report.module_tree import what_of
from ipu_model.report.page import data_script, fullest_parts, rendered
from ipu_model.report.quantities import aligned, change, cut, duration, percent, plain, short, whole

NAMES = ("before", "after")
_CLOSE = 0.005
_WIDEST_CELL = 40
_MOST_MOVED = 5
_OF_BOTH = {Verdict.FITS: "both fit", Verdict.CLOSE: "both are too close to call", Verdict.DOES_NOT_FIT: "neither fits"}
_OF_ONE = {Verdict.FITS: "fits", Verdict.CLOSE: "is too close to call", Verdict.DOES_NOT_FIT: "does not fit"}
_WITHOUT_ROOM = " The speed of a program that does not fit is the speed that it would have on larger tiles."
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A number that is a whole part of a path: the place of a layer in a list."""
Row = tuple[str, str, str, str]


class Part(NamedTuple):
    title: str
    rows: tuple[Row, ...]


def compare(before: Profile, after: Profile, names: Sequence[str] = NAMES) -> str:
    """Compare two profiles in a table of plain text that ends with a conclusion; all numbers are modelled."""
    every = parts(before, after)
    rows = [("modelled", *names, "change"), *(row for part in every for row in part.rows)]
    lines = aligned([[cut(plain(cell), _WIDEST_CELL) for cell in row] for row in rows])
    titles = [plain(f"{name}: {profile.name} on {profile.machine}") for name, profile in zip(names, (before, after))]
    text = [*titles, "", lines.pop(0)]
    for part in every:
        text += [part.title, *lines[: len(part.rows)]]
        lines = lines[len(part.rows) :]
    return "\n".join([*text, "", plain(conclusion(before, after, names))]) + "\n"


def conclusion(before: Profile, after: Profile, names: Sequence[str] = NAMES) -> str:
    """Return how much faster it is, whether both fit and what limits, and what a speed without room means."""
    factor = after.samples_per_second / before.samples_per_second
    if abs(factor - 1) < _CLOSE:
        speed = f"{names[1]} is as fast as {names[0]}"
    elif factor > 1:
        speed = f"{names[1]} is {factor:.2f} x as fast as {names[0]}"
    else:
        speed = f"{names[1]} takes {1 / factor:.2f} x the time of {names[0]} for a sample"
    limits = f"{'still ' * (before.limited_by == after.limited_by)}limited by: {_limit(before, after)}"
    if before.verdict is after.verdict:
        fits = _OF_BOTH[before.verdict]
    else:
        fits = f"{names[0]} {_OF_ONE[before.verdict]}, {names[1]} {_OF_ONE[after.verdict]}"
    lacks_room = Verdict.DOES_NOT_FIT in (before.verdict, after.verdict)
    return f"Modelled end to end, {speed}; {fits}; {limits}." + _WITHOUT_ROOM * lacks_room


def _limit(before: Profile, after: Profile) -> str:
    return ", then ".join(dict.fromkeys((before.limited_by, after.limited_by)))


def parts(before: Profile, after: Profile) -> tuple[Part, ...]:
    rows = []
    for op in moved_numbers(by_op, before, after)[:_MOST_MOVED]:
        name = f"{op.name}: {op.what}, {op.group}"
        short_name = name if len(name) <= _WIDEST_CELL else f"...{name[3 - _WIDEST_CELL :]}"
        if op.change:
            rows.append(_row(short_name, op.before, op.after, duration))
    largest = Part("IPU time of a sample: the largest changes", tuple(rows))
    return tuple(part for part in (*_numbers(before, after), largest, _differing(before, after)) if part.rows)


def _numbers(before: Profile, after: Profile) -> tuple[Part, ...]:
    busiest, later = (max(profile.cycles, key=lambda cycles: cycles.on_tile_execute) for profile in (before, after))
    phases = [(name, getattr(busiest, field), getattr(later, field)) for field, name in PHASE_NAMES.items()]
    held = [number for number in moved_in_order(by_category, before, after) if number.before or number.after]
    return (
        Part("throughput", tuple(_throughput(before, after))),
        Part(
            "cycles of one call on the IPU that computes most",
            tuple(_row(*phase, whole) for phase in phases if any(phase[1:])),
        ),
        Part(
            "bytes of the fullest tile",
            (
                *(_row(number.name, number.before, number.after, whole) for number in held),
                _row("fullest tile", before.memory.max_tile_bytes, after.memory.max_tile_bytes, whole),
                _words("verdict", str(before.verdict), str(after.verdict)),
            ),
        ),
    )


def _row(name: str, before: float, after: float, shown: Callable[[float], str]) -> Row:
    return (name, shown(before), shown(after), change(before, after))


def _words(name: str, before: str, after: str) -> Row:
    return (name, before, after, "same" if before == after else "")


def _throughput(before: Profile, after: Profile) -> Iterator[Row]:
    yield _row("samples/s end to end", before.samples_per_second, after.samples_per_second, short)
    yield _row("samples/s device alone", before.device_samples_per_second, after.device_samples_per_second, short)
    yield _words("samples a call", whole(before.samples_per_call), whole(after.samples_per_call))
    yield _row("time of a call", before.call_seconds, after.call_seconds, duration)
    yield _row("device time", before.device_seconds_per_call, after.device_seconds_per_call, duration)
    yield _row("host time", before.host_seconds_per_call, after.host_seconds_per_call, duration)
    for share in dict.fromkeys((*before.shares, *after.shares)):
        values = before.shares.get(share, 0.0), after.shares.get(share, 0.0)
        texts = percent(values[0]), percent(values[1])
        if set(texts) != {percent(0.0)}:
            points = "same" if texts[0] == texts[1] else f"{100 * (values[1] - values[0]):+.1f} points"
            yield (f"share of {share}", *texts, points)
    yield _words("limited by", before.limited_by, after.limited_by)


def _differing(before: Profile, after: Profile) -> Part:
    names = dict.fromkeys((*before.options, *after.options))
    values = [
        ("machine", str(before.machine), str(after.machine)),
        *((name, str(before.options.get(name, "-")), str(after.options.get(name, "-"))) for name in names),
    ]
    return Part("options that differ", tuple((*option, "") for option in values if option[1] != option[2]))


# ------------------------------------------------------------------------------- what accounts for it


class Moved(NamedTuple):
    """A number before and after: seconds or bytes of `name`, `what` of it and in which `group` (a pass, a category)."""

    name: str
    what: str
    group: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


# Numbers of what was moved, by its name, what of it, and group.
Key = tuple[str, str, str]
Numbers = Mapping[Key, float]


def moved_numbers(numbers: Callable[[Profile], Numbers], before: Profile, after: Profile) -> list[Moved]:
    """Return all numbers of two profiles, such as `moved_numbers(by_module, before, after)`, largest change first."""
    return sorted(moved_in_order(numbers, before, after), key=lambda number: -abs(number.change))


def moved_in_order(numbers: Callable[[Profile], Numbers], before: Profile, after: Profile) -> list[Moved]:
    first, then = numbers(before), numbers(after)
    return [Moved(*key, first.get(key, 0.0), then.get(key, 0.0)) for key in dict.fromkeys((*first, *then))]


def by_part(profile: Profile) -> Numbers:
    """Return the IPU time of a sample by what the cycles are spent on, in the order of `cycles_spent`."""
    return {(part.name, "", ""): part.cycles * _seconds_a_sample(profile) for part in cycles_spent(profile)}


def by_module(profile: Profile) -> Numbers:
    """Return the IPU time of a sample by module, layers of one list together."""
    return _summed(((module, "", ""), seconds) for (module, _, _), seconds in by_op(profile).items())


def by_category(profile: Profile) -> Numbers:
    return {(part.name, "", ""): part.bytes_on_fullest_tile for part in profile.memory.fullest.categories}


def by_tensor(profile: Profile) -> Numbers:
    """Return the bytes of tensors on the fullest tile of all IPUs at the peak."""
    live = profile.memory.fullest.live_at_peak
    return _summed(((_starred(tensor.name), "", tensor.category), tensor.bytes_on_fullest_tile) for tensor in live)


def by_op(profile: Profile) -> Numbers:
    """Return the IPU time of a sample by module, op and pass, layers of one list together."""
    factor = _seconds_a_sample(profile)
    passes: list[tuple[Key, float]] = []
    for op in profile.work:
        module, what = _starred(op.scope) or "(the model itself)", _starred(what_of(op))
        again = op.cycles * op.recomputations
        passes.append(((module, what, op.phase), (op.cycles_per_call - again) * factor))
        passes.append(((module, what, "recompute"), again * factor))
    return _summed((key, seconds) for key, seconds in passes if seconds)


def _starred(path: str) -> str:
    # "layers.*.norm" for "layers.7.norm"
    return _NUMBER.sub("*", path)


def _seconds_a_sample(profile: Profile) -> float:
    """Return what one cycle of one IPU of a replica, in every call, adds to the IPU time of a sample."""
    return profile.replicas / (profile.machine.clock_hz * profile.samples_per_call)


def _summed(numbers: Iterable[tuple[Key, float]]) -> Numbers:
    sums = defaultdict[Key, float](float)
    for key, number in numbers:
        sums[key] += number
    return sums


# ------------------------------------------------------------------------------- the page


class Bar(NamedTuple):
    name: str
    total: str
    parts: list[tuple[str, float, Look]]


def compare_html(before: Profile, after: Profile, names: Sequence[str] = NAMES) -> str:
    """Return the comparison of two profiles as one self-contained page; all numbers are modelled."""
    both = before, after
    title = before.name if before.name == after.name else f"{before.name} and {after.name}"
    spent = moved_in_order(by_part, before, after)
    time_bars = [
        Bar(name, duration(sum(seconds)), [(one.name, s, SPENT_LOOKS[one.name]) for one, s in zip(spent, seconds)])
        for name, seconds in zip(names, ([one.before for one in spent], [one.after for one in spent]), strict=True)
    ]
    memory_bars = []
    for name, profile in zip(names, both, strict=True):
        fullest = profile.memory.fullest
        where = f"{name}: tile {fullest.fullest_tile} of IPU {fullest.ipu}"
        memory_bars.append(Bar(where, f"{whole(profile.memory.max_tile_bytes)} bytes", fullest_parts(profile)))
    # Each row of the script's tables has a name, a detail, a group and both numbers.
    data = {
        "names": tuple(names),
        "parts": moved_numbers(by_part, *both),
        "modules": moved_numbers(by_module, *both),
        "ops": moved_numbers(by_op, *both),
        "categories": moved_numbers(by_category, *both),
        "tensors": moved_numbers(by_tensor, *both),
    }
    return rendered(
        "compare.html",
        title=f"{title}: {names[0]} and {names[1]}",
        programs=[f"{name}: {setting(profile)}" for name, profile in zip(names, both, strict=True)],
        conclusion=conclusion(before, after, names),
        before=before,
        after=after,
        limit=_limit(before, after),
        of_one=_OF_ONE,
        names=list(names),
        differing=[row[:3] for row in _differing(before, after).rows],
        time_bars=time_bars,
        memory_bars=memory_bars,
        tile_bytes=min(profile.memory.tile_bytes for profile in both),
        data=data_script(data),
        parts=[part for part in _numbers(before, after) if part.rows],
    )
