"""The support status of every public PopTorch name, from the table in `data/support.json`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import msgspec

STATUSES = ("works", "approximated", "no effect", "refused")
_HEAD = """\
# Supported PopTorch names

{names} names: {summary}.

* **works**: as PopTorch's documentation says.
* **approximated**: works, with the difference stated.
* **no effect**: accepted; neither results nor the performance model depend on it.
* **refused**: raises `poptorch.Error` when it is used.

Every name that works has a test, in a folder of `ipu_model/tests`."""


@dataclass(frozen=True)
class Entry:
    """One public name: its status, the difference or the nearest thing that works, and the test that covers it."""

    name: str
    status: str
    text: str = ""
    test: str = ""


@dataclass(frozen=True)
class Area:
    """The names in one module, class or `environment`; `prefix` is what programs write before the names."""

    title: str
    owner: str
    prefix: str
    entries: tuple[Entry, ...]

    def shown(self, entry: Entry) -> str:
        return f"{self.prefix}.{entry.name}" if self.prefix else entry.name


@cache
def table() -> tuple[Area, ...]:
    data = resources.files("poptorch") / "data"
    tests = msgspec.json.decode((data / "support_tests.json").read_bytes(), type=dict[str, str])
    areas = msgspec.json.decode((data / "support.json").read_bytes(), type=dict[str, tuple[Area, ...]])["areas"]
    return tuple(
        replace(area, entries=tuple(replace(e, test=tests.get(area.shown(e), e.test)) for e in area.entries))
        for area in areas
    )


def status_of(name: str) -> Entry | None:
    return next((entry for area in table() for entry in area.entries if area.shown(entry) == name), None)


def as_markdown() -> str:
    counts = Counter(entry.status for area in table() for entry in area.entries)
    summary = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    lines = [_HEAD.format(names=sum(counts.values()), summary=summary)]
    for area in table():
        lines += ["", f"## {area.title}", ""]
        lines += ["| Name | Status | Difference, or what to use instead | Test |", "|---|---|---|---|"]
        for entry in area.entries:
            test = f"`{entry.test}`" if entry.test else ""
            lines.append(f"| `{area.shown(entry)}` | {entry.status} | {entry.text} | {test} |")
    return "\n".join(lines) + "\n"
