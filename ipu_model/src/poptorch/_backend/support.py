"""The support status of every public PopTorch name, from `data/support.json`, and which ops of PyTorch it compiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import msgspec

from ipu_model.capture import operators

STATUSES = ("works", "approximated", "no effect", "refused")
_HEAD = """\
# Supported PopTorch names

{names} names: {summary}.

* **works**: as PopTorch's documentation says.
* **approximated**: works, with the difference stated.
* **no effect**: accepted; neither results nor the performance model depend on it.
* **refused**: raises `poptorch.Error` when it is used.

Every name that works has a test, in a folder of `ipu_model/tests`."""

_OPERATORS = """
## Operators of PyTorch

PopTorch's compiler has a handler for these aten ops, also in place and with `out=`:

{handlers}.

Functions and layers that PyTorch 2.0, the release of PopTorch 3.4, computes with such ops are supported as well: all of
PopTorch's own documentation, and also

{taken_apart}.

A program with any other op stops when it is compiled, with PopTorch's error, the line of your program, and what to use
instead. With `IPU_MODEL_UNSUPPORTED_OPS=warn`, it runs on this machine, and the profile has a note that IPUs could not.

{instead}
"""


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
    return "\n".join([*lines, _operators()])


def _operators() -> str:
    lists = operators.table()
    return _OPERATORS.format(
        handlers=_names(lists.handlers),
        taken_apart=_names(lists.taken_apart),
        instead="\n".join(f"* `aten::{name}`: {advice}" for name, advice in lists.instead.items()),
    )


def _names(text: str) -> str:
    return ", ".join(f"`{name}`" for name in text.split())
