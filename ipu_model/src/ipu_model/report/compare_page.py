"""Two profiles as a page: bars side by side, what differs, and which modules, ops and tensors account for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ipu_model.predict.profile import Profile
from ipu_model.report.breakdown import fullest_ipu
from ipu_model.report.compare import NAMES, OF_ONE, conclusion, differing_options, numbers
from ipu_model.report.difference import (
    Moved,
    moved_categories,
    moved_modules,
    moved_ops,
    moved_parts,
    moved_tensors,
)
from ipu_model.report.findings import setting
from ipu_model.report.fit_parts import VERDICT_CLASSES
from ipu_model.report.page import fullest_parts, rendered
from ipu_model.report.page_data import data_script
from ipu_model.report.page_looks import LOOKS, LOOKS_JSON, SPENT_LOOKS, PageLook
from ipu_model.report.quantities import change, duration, short, whole
from ipu_model.report.tables import Table

MovedRow = tuple[str, str, str, float, float]


def compare_html(before: Profile, after: Profile, names: Sequence[str] = NAMES) -> str:
    """Return the comparison of two profiles as one self-contained page; all numbers are modelled."""
    both = before, after
    title = before.name if before.name == after.name else f"{before.name} and {after.name}"
    time_bars = [_time_bar(name, before, after, n) for n, name in enumerate(names)]
    memory_bars = [_memory_bar(name, profile) for name, profile in zip(names, both, strict=True)]
    return rendered(
        "compare.html",
        title=f"{title}: {names[0]} and {names[1]}",
        programs=[f"{name}: {setting(profile)}" for name, profile in zip(names, both, strict=True)],
        conclusion=conclusion(before, after, names),
        cards=tuple(_cards(before, after, names)),
        differing=Table("What differs", ("option", *names), [row[:3] for row in differing_options(before, after).rows]),
        time_bars=time_bars,
        time_entries=_entries(time_bars),
        memory_bars=memory_bars,
        memory_entries=_entries(memory_bars),
        tile_bytes=min(profile.memory.tile_bytes for profile in both),
        data=data_script(_moved(before, after, names)),
        looks_json=LOOKS_JSON,
        tables=[Table(f"{part.title}, modelled", ("", *names, "change"), part.rows) for part in numbers(before, after)],
    )


@dataclass(frozen=True)
class MovedData:
    """What changed, for the page's script: each row has a name, a detail, a group and both numbers."""

    names: tuple[str, ...]
    parts: list[MovedRow]
    modules: list[MovedRow]
    ops: list[MovedRow]
    categories: list[MovedRow]
    tensors: list[MovedRow]


@dataclass(frozen=True)
class Card:
    """What matters most, in brief; `tone` is that of a verdict, or empty."""

    title: str
    value: str
    details: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Bar:
    """One of two bars that are drawn on one axis: its name, its total as text, and its parts with their looks."""

    name: str
    total: str
    parts: tuple[tuple[str, float, PageLook], ...]


def _moved(before: Profile, after: Profile, names: Sequence[str]) -> MovedData:
    return MovedData(
        tuple(names),
        *(
            [(each.name, each.what, each.group, each.before, each.after) for each in found(before, after)]
            for found in (_moved_parts_sorted, moved_modules, moved_ops, moved_categories, moved_tensors)
        ),
    )


def _moved_parts_sorted(before: Profile, after: Profile) -> tuple[Moved, ...]:
    return tuple(sorted(moved_parts(before, after), key=lambda each: -abs(each.change)))


def _cards(before: Profile, after: Profile, names: Sequence[str]) -> Iterator[Card]:
    """Yield speed, memory with both verdicts, and the bottleneck."""
    rates = before.samples_per_second, after.samples_per_second
    yield Card("Throughput end to end", change(*rates), f"{short(rates[0])} to {short(rates[1])} samples/s")
    device = before.device_samples_per_second, after.device_samples_per_second
    yield Card("Device alone", change(*device), f"{short(device[0])} to {short(device[1])} samples/s")
    full = before.memory.max_tile_bytes, after.memory.max_tile_bytes
    yield Card("Fullest tile", change(*full), f"{whole(full[0])} to {whole(full[1])} bytes")
    for name, profile in zip(names, (before, after), strict=True):
        yield Card("Does it fit?", f"{name} {OF_ONE[profile.verdict]}", tone=VERDICT_CLASSES[profile.verdict])
    same = before.limited_by == after.limited_by
    limit = before.limited_by if same else f"{before.limited_by}, then {after.limited_by}"
    yield Card("Bottleneck", limit, "the same in both" if same else "")


def _time_bar(name: str, before: Profile, after: Profile, which: int) -> Bar:
    """Return one of two bars that have the same parts in the same order."""
    found = [(each.name, (each.before, each.after)[which]) for each in moved_parts(before, after)]
    parts = tuple((part, seconds, SPENT_LOOKS.get(part, LOOKS.other)) for part, seconds in found)
    return Bar(name, duration(sum(seconds for _, seconds in found)), parts)


def _memory_bar(name: str, profile: Profile) -> Bar:
    ipu = profile.memory[fullest_ipu(profile)]
    where = f"{name}: tile {ipu.fullest_tile} of IPU {ipu.ipu}"
    return Bar(where, f"{whole(profile.memory.max_tile_bytes)} bytes", tuple(fullest_parts(profile)))


def _entries(bars: Sequence[Bar]) -> Mapping[str, PageLook]:
    """Return the looks of all parts of all bars by name, for the legend."""
    return {part: look for bar in bars for part, value, look in bar.parts if value}
