"""The support status of every public PopTorch name.

`data/support.json` holds the table; every name has one of four statuses:

================  ====================================================================================
``works``         as PopTorch's documentation says
``approximated``  works, with the difference that the text states
``no effect``     accepted; neither results nor the performance model depend on it
``refused``       raises `poptorch.Error` when it is used; the text says what works instead
================  ====================================================================================
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

STATUSES = ("works", "approximated", "no effect", "refused")


@dataclass(frozen=True)
class Entry:
    """One public name: its status, and the difference or the nearest thing that works.

    `test` names the test that covers it (file::class::function), from `data/support_tests.json`.
    """

    name: str
    status: str
    text: str = ""
    test: str = ""


@dataclass(frozen=True)
class Area:
    """The names in one module or class (given by its dotted path), or in `environment`.

    `prefix` is the text that programs write before the names.
    """

    title: str
    owner: str
    prefix: str
    entries: tuple[Entry, ...]


@cache
def table() -> tuple[Area, ...]:
    """Read the table that comes with the package."""
    tests = _data("support_tests.json")
    return tuple(_with_tests(_area(**area), tests) for area in _data("support.json")["areas"])


def _data(file: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((resources.files("poptorch") / "data" / file).read_text(encoding="utf-8"))
    return data


def _area(title: str, owner: str, prefix: str, entries: list[dict[str, str]]) -> Area:
    return Area(title, owner, prefix, tuple(Entry(**entry) for entry in entries))


def _with_tests(area: Area, tests: Mapping[str, str]) -> Area:
    entries = (replace(entry, test=tests.get(_shown(area, entry), entry.test)) for entry in area.entries)
    return replace(area, entries=tuple(entries))


def status_of(name: str) -> Entry | None:
    """Return the entry of a name as programs write it, such as `poptorch.Options.deviceIterations`."""
    return _by_full_name().get(name)


def as_markdown() -> str:
    """Return the support page: how many names have which status, then one table for each area."""
    counts = Counter(entry.status for area in table() for entry in area.entries)
    summary = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    lines = ["# Supported PopTorch names", "", f"{sum(counts.values())} names: {summary}.", "", *_LEGEND]
    for area in table():
        lines += [
            "",
            f"## {area.title}",
            "",
            "| Name | Status | Difference, or what to use instead | Test |",
            "|---|---|---|---|",
        ]
        lines += [row(area, entry) for entry in area.entries]
    return "\n".join(lines) + "\n"


def row(area: Area, entry: Entry) -> str:
    """Return the row of one name on the support page."""
    test = f"`{entry.test}`" if entry.test else ""
    return f"| `{_shown(area, entry)}` | {entry.status} | {entry.text} | {test} |"


_LEGEND = (
    "* **works**: as PopTorch's documentation says.",
    "* **approximated**: works, with the difference stated.",
    "* **no effect**: accepted; neither results nor the performance model depend on it.",
    "* **refused**: raises `poptorch.Error` when it is used.",
    "",
    "Every name that works has a test, in a folder of `ipu_model/tests`.",
)


def _shown(area: Area, entry: Entry) -> str:
    return f"{area.prefix}.{entry.name}" if area.prefix else entry.name


@cache
def _by_full_name() -> dict[str, Entry]:
    return {_shown(area, entry): entry for area in table() for entry in area.entries}
