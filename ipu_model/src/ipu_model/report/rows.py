"""The timeline as rows in which nothing overlaps: those of the device, and those of the host."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ipu_model.profiling.data import Span

HOST_KINDS = ("load", "call")
DEVICE_WORKS = "works"
"""The kind of the span that stands for the device as a whole."""
_CLOSE_SECONDS = 0.5e-9


@dataclass(frozen=True)
class Row:
    """One row: spans in order of time, none of which starts before the one before it has ended."""

    name: str
    spans: tuple[Span, ...]

    @property
    def busy_seconds(self) -> float:
        """How long it does anything but wait."""
        return sum(span.seconds for span in self.spans if span.kind != "wait")


def all_rows(timeline: Iterable[Span]) -> tuple[Row, ...]:
    """Return every resource's rows: the loader's and the host's first, then the others in their natural order.

    Spans of one resource that overlap go to rows of their own, named "host", "host (2)", ...
    """
    spans = list(timeline)
    hosts = _host_resources(spans)
    rows: list[Row] = []
    for resource in sorted({span.resource for span in spans}, key=lambda name: (hosts.get(name, 9), *_natural(name))):
        lanes = _lanes([span for span in spans if span.resource == resource])
        rows += [Row(resource if not n else f"{resource} ({n + 1})", lane) for n, lane in enumerate(lanes)]
    return tuple(rows)


def device_rows(timeline: Iterable[Span]) -> tuple[Row, ...]:
    """Return the rows of what is not the host, with times from where the device begins."""
    spans = list(timeline)
    hosts = _host_resources(spans)
    own = [span for span in spans if span.resource not in hosts]
    begin = min((span.start for span in own), default=0.0)
    return all_rows(replace(span, start=span.start - begin) for span in own)


def host_rows(timeline: Iterable[Span]) -> tuple[Row, ...]:
    """Return the rows of the host, and one for the device as a whole: from where it begins to where it ends."""
    spans = list(timeline)
    hosts = _host_resources(spans)
    own = all_rows(span for span in spans if span.resource in hosts)
    device = [span for span in spans if span.resource not in hosts]
    if not device:
        return own
    begin, end = min(span.start for span in device), max(span.end for span in device)
    return (*own, Row("device", (Span("device", DEVICE_WORKS, begin, end - begin),)))


def _host_resources(spans: Iterable[Span]) -> dict[str, int]:
    """Return the resources of the host with their rank among them: those that load come first."""
    found: dict[str, int] = {}
    for span in spans:
        if span.kind in HOST_KINDS:
            found[span.resource] = min(found.get(span.resource, 9), HOST_KINDS.index(span.kind))
    return found


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """Return a key that sorts "IPU 10" behind "IPU 9": pairs of words and the number behind them."""
    parts = re.findall(r"([^0-9]*)([0-9]{0,15})", name)
    return tuple((words, int(number or "-1")) for words, number in parts)


def _lanes(spans: Iterable[Span]) -> list[tuple[Span, ...]]:
    """Put each span into the first lane that is free when it starts."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: (each.start, -each.seconds)):
        free = next((lane for lane in lanes if lane[-1].end <= span.start + _CLOSE_SECONDS), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return [tuple(lane) for lane in lanes]
