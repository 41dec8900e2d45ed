"""The report for a terminal: at most 50 lines of plain text."""

from __future__ import annotations

import textwrap
from collections import Counter
from itertools import zip_longest

from ipu_model.predict.profile import LiveTensor, Profile, Verdict
from ipu_model.report import breakdown
from ipu_model.report.findings import Range, device_range, end_to_end_range, heading, verdict
from ipu_model.report.module_tree import main_parts, module_tree
from ipu_model.report.quantities import aligned, counted, cut, duration, percent, plain, rate, short, whole

MOST_LINES = 50
WIDTH = 100
_MOST_IPUS = 5
_MOST_CATEGORIES = 6
_MOST_GROUPS = 5
_LEAST_PARTS = 4
_MOST_SHARES = 4
_MOST_TENSORS = 4
_LONGEST_NAME = 30
_LONGEST_PATH = 46
_LONGEST_TENSOR = 40
_LONGEST_TYPE = 22


def text_report(profile: Profile) -> str:
    """Return the summary of a profile: at most 50 lines of ASCII, each number modelled."""
    lines = [*_facts(profile), "", *_cycles(profile), "", *_memory(profile), *_peak(profile), *_ops(profile)]
    lines += _notes(profile, MOST_LINES - len(lines))
    return "\n".join(cut(plain_line, WIDTH) for plain_line in lines) + "\n"


def _facts(profile: Profile) -> list[str]:
    band = profile.error_band
    times = (
        f"{counted(profile.samples_per_call, 'sample')}: device {duration(profile.device_seconds_per_call)}, "
        f"host {duration(profile.host_seconds_per_call)}, end to end {duration(profile.call_seconds)}"
    )
    fitted = ", if it fitted" if profile.verdict is Verdict.DOES_NOT_FIT else ""
    rows = [
        ("memory", verdict(profile)),
        ("end to end", _rates(end_to_end_range(profile)) + fitted),
        ("device", f"{_rates(device_range(profile))}; hardware time {band.low:.3g} to {band.high:.3g} x modelled"),
        ("one call", times),
        ("limited by", profile.limited_by),
        ("device time", _shares(profile)),
        ("contractions", f"{rate(profile.flops_per_call / profile.device_seconds_per_call, 'FLOP/s')} over the call"),
        ("compilation", f"{duration(profile.compilation_seconds)} with the Poplar SDK, modelled"),
    ]
    return [plain(heading(profile)), *aligned([(name, plain(text)) for name, text in rows], left=2)]


def _shares(profile: Profile) -> str:
    shares = sorted(profile.shares.items(), key=lambda share: -share[1])
    named = [f"{name} {percent(share)}" for name, share in shares[:_MOST_SHARES]]
    rest = sum(share for _, share in shares[_MOST_SHARES:])
    return ", ".join([*named, f"other {percent(rest)}"] if rest else named) or "not split"


def _rates(rates: Range) -> str:
    return f"{short(rates.value)} samples/s ({short(rates.low)} to {short(rates.high)})"


def _cycles(profile: Profile) -> list[str]:
    by_work = sorted(range(len(profile.cycles)), key=lambda ipu: -profile.cycles[ipu].on_tile_execute)
    ipus = sorted(by_work[:_MOST_IPUS])
    rows = [("modelled cycles of one call", *(f"IPU {ipu}" for ipu in ipus))]
    rows += [(name, *(cells[ipu] for ipu in ipus)) for name, *cells in breakdown.cycle_rows(profile)]
    return [*_headed(rows), *_left_out(len(profile.cycles), len(ipus), "compute most")]


def _memory(profile: Profile) -> list[str]:
    places = breakdown.fullest_ipus(profile, _MOST_IPUS)
    memory = profile.memory
    every = breakdown.categories(profile)
    starred = " (*: shared over time)" if any(not category.always_live for category in every[:_MOST_CATEGORIES]) else ""
    rows = [(f"modelled bytes of the fullest tile{starred}", *(f"IPU {memory[place].ipu}" for place in places))]
    for category in every[:_MOST_CATEGORIES]:
        name = cut(plain(category.name), _LONGEST_NAME) + ("" if category.always_live else " *")
        rows.append((name, *(whole(category.bytes_on_fullest_tile[place]) for place in places)))
    rest = every[_MOST_CATEGORIES:]
    if rest:
        sums = (whole(sum(category.bytes_on_fullest_tile[place] for category in rest)) for place in places)
        rows.append((f"{len(rest)} more", *sums))
    rows.append(("fullest tile", *(whole(memory[place].max_tile_bytes) for place in places)))
    return [*_headed(rows), *_left_out(len(memory), len(places), "are fullest")]


def _headed(rows: list[tuple[str, ...]]) -> list[str]:
    lines = aligned(rows)
    title = rows[0][0]
    return [title + "  " + lines[0][2 + len(title) :], *lines[1:]]


def _left_out(every: int, shown: int, which: str) -> list[str]:
    return [f"  (of {every} IPUs the {shown} that {which}; report.html shows all)"] if shown < every else []


def _peak(profile: Profile) -> list[str]:
    memory = profile.memory.fullest
    if not memory.live_at_peak:
        return []
    groups: dict[tuple[str, str, str], list[LiveTensor]] = {}
    for tensor in memory.live_at_peak:
        key = breakdown.layers_starred(tensor.name), tensor.category, breakdown.type_of(tensor)
        groups.setdefault(key, []).append(tensor)
    held = {key: sum(tensor.bytes_on_fullest_tile for tensor in alike) for key, alike in groups.items()}
    during = f", during {memory.liveness[memory.peak].name}" if memory.peak < len(memory.liveness) else ""
    rows = []
    for key in sorted(groups, key=lambda key: -held[key])[:_MOST_TENSORS]:
        (name, category, kind), alike = key, groups[key]
        count = sum(tensor.copies for tensor in alike)
        title = (name if len(alike) > 1 else alike[0].name) + (f" x {count}" if count > 1 else "")
        title = cut(plain(title.removeprefix("temporary data of ")), _LONGEST_TENSOR)
        rows.append((title, cut(plain(kind), _LONGEST_TYPE), plain(category), whole(held[key])))
    return [plain(f"largest tensors there at its peak (IPU {memory.ipu}{during})"), *aligned(rows, left=3)]


def _ops(profile: Profile) -> list[str]:
    if not profile.ops:
        return []
    parts = main_parts(module_tree(profile), least=_LEAST_PARTS)
    families: dict[str, float] = {}
    for op in profile.work:
        families[op.family] = families.get(op.family, 0.0) + op.cycles_per_call
    every = sum(families.values())
    most = sorted(families, key=lambda name: -families[name])[:_MOST_GROUPS]
    left = [(plain(part.name), percent(part.share)) for part in parts[:_MOST_GROUPS]]
    right = [(plain(name), percent(families[name] / every if every else 0.0)) for name in most]
    rows = [
        (cut(a[0], _LONGEST_PATH), a[1].rjust(7), " ", cut(b[0], _LONGEST_NAME), b[1].rjust(7))
        for a, b in zip_longest(left, right, fillvalue=("", ""))
    ]
    lines = ["", "modelled cycles of all ops, by part of the model and by kind of op", *aligned(rows, left=5)]
    if profile.fallbacks:
        targets = Counter(op.target for op in profile.fallbacks)
        names = ", ".join(f"{name} x {count}" if count > 1 else name for name, count in targets.most_common())
        share = percent(breakdown.fallback_share(profile))
        lines.append(plain(f"ops without a formula of their own ({share} of these cycles): {names}"))
    return lines


def _notes(profile: Profile, room: int) -> list[str]:
    """Return the notes, wrapped, as far as there is room; the last line says how many are left out."""
    wrapped = [
        textwrap.wrap(plain(note), WIDTH, initial_indent="note: ", subsequent_indent="      ")
        for note in profile.notes
        if note.strip()
    ]
    lines: list[str] = []
    for index, note in enumerate(wrapped):
        is_last = index == len(wrapped) - 1
        if len(lines) + len(note) + (0 if is_last else 1) > room:
            return [*lines, f"({counted(len(wrapped) - index, 'more note')} in report.html)"]
        lines += note
    return lines
