"""Describe in words what each figure of a profile shows; this needs no matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ipu_model.predict.profile import Profile
from ipu_model.report.breakdown import (
    DEVICE_WORKS,
    categories,
    compute_share,
    device_rows,
    fullest_ipus,
    host_rows,
    phases,
)
from ipu_model.report.findings import verdict
from ipu_model.report.quantities import duration, percent, size, whole

_MOST_NAMED = 4


def describe_timeline(profile: Profile, repeated: str = "Bars with a break") -> str:
    """Describe the timeline of the device; `repeated` says how the picture draws equal stretches."""
    rows = device_rows(profile.timeline)
    seconds = profile.device_seconds_per_call
    busy = [f"{row.name} works {percent(row.busy_seconds / seconds)} of it" for row in rows[:_MOST_NAMED]]
    repeats = any(span.repeats > 1 for row in rows for span in row.spans)
    return _sentences(
        f"What the device does in one call of {duration(seconds)}: {_listed(busy, len(rows))}",
        f"{repeated} stand for several equal stretches, which really take turns with others" if repeats else "",
    )


def describe_host_device(profile: Profile) -> str:
    """Describe when host and device work."""
    words = {"load": "loading", "call": "a call on the host", DEVICE_WORKS: "the device's work"}
    parts = [
        f"{words.get(span.kind, span.kind)} from {duration(span.start)} to {duration(span.end)}"
        for row in host_rows(profile.timeline)
        for span in row.spans
    ]
    return _sentences(
        f"Host and device in one call: {_listed(parts[:_MOST_NAMED], len(parts))}",
        f"The next call starts {duration(profile.call_seconds)} after this one",
    )


def describe_memory_per_tile(profile: Profile) -> str:
    """Describe how full the tiles are."""
    parts = []
    for place in fullest_ipus(profile, _MOST_NAMED):
        memory = profile.memory[place]
        mean = memory.total_bytes / max(1, len(memory.tiles))
        parts.append(f"IPU {memory.ipu} up to {whole(memory.max_tile_bytes)} bytes, {whole(mean)} on average")
    return _sentences(f"Memory of each tile: {_listed(parts, len(profile.memory))}", f"Verdict: {verdict(profile)}")


def describe_memory_categories(profile: Profile) -> str:
    """Describe what fills the fullest tiles."""
    largest = [
        f"{each.name} with up to {whole(max(each.bytes_on_fullest_tile))} bytes" for each in categories(profile)[:3]
    ]
    return _sentences(f"What the fullest tile of each IPU holds; the most is {', then '.join(largest) or 'nothing'}")


def describe_liveness(profile: Profile) -> str:
    """Describe the peaks of liveness."""
    parts = []
    for place in fullest_ipus(profile, _MOST_NAMED):
        memory = profile.memory[place]
        if memory.liveness:
            peak = max(memory.liveness, key=lambda step: step.bytes_on_tile)
            room = profile.memory.tile_bytes - memory.always_live_bytes
            parts.append(
                f"IPU {memory.ipu} at most {size(peak.bytes_on_tile)} at {peak.name or peak.node} ({peak.phase}), "
                f"with {f'room for {size(room)}' if room > 0 else 'no room at all'}"
            )
    return _sentences(
        f"Bytes of the fullest tile besides what is always live, op by op: {_listed(parts, len(profile.memory))}"
    )


def describe_cycles(profile: Profile) -> str:
    """Describe where cycles go."""
    shares = [f"{percent(compute_share(each))} on IPU {ipu}" for ipu, each in enumerate(profile.cycles[:_MOST_NAMED])]
    waits = max(phases(profile)[1:], key=lambda phase: sum(phase.cycles))
    return _sentences(
        f"OnTileExecute takes {_listed(shares, len(profile.cycles))} of the cycles of one call",
        f"Of all else, {waits.name} takes most",
    )


def _listed(parts: Iterable[str], every: int) -> str:
    """Join parts, and say so if they are not all."""
    named = list(parts)
    more = f", and {every - len(named)} more" if every > len(named) > 0 else ""
    return (", ".join(named) or "nothing is known") + more


def _sentences(*sentences: str) -> str:
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


DESCRIBED: Mapping[str, Callable[[Profile], str]] = {
    "timeline": describe_timeline,
    "host-device": describe_host_device,
    "cycles": describe_cycles,
    "memory-per-tile": describe_memory_per_tile,
    "memory-categories": describe_memory_categories,
    "liveness": describe_liveness,
}
"""What gives each figure's alternative text and caption."""
