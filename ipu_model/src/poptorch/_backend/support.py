"""The support status of every public PopTorch name, from `data/support.json`, and which ops of PyTorch it compiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import msgspec
from jinja2 import Template

from ipu_model.capture import operators

STATUSES = ("works", "approximated", "no effect", "refused")


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
    template = (resources.files("poptorch") / "data" / "support.md.jinja").read_text(encoding="utf-8")
    counts = Counter(entry.status for area in table() for entry in area.entries)
    page: str = Template(template, keep_trailing_newline=True).render(
        areas=table(), counts=counts, statuses=STATUSES, operators=operators.table()
    )
    return page
