"""The outcome of a test, as the process that runs it reports to the process that compares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Kind(str, Enum):
    """The possible outcomes of a test."""

    STARTED = "started"
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The test skipped itself, because something it needs is missing."""
    LEFT_OUT = "left out"
    """A rule of this tool skipped it (`rules.py`)."""


@dataclass(frozen=True)
class Outcome:
    """A test's outcome; `line` is the first line of its failure, or why it was not run."""

    test: str
    kind: Kind
    line: str = ""


def append(path: Path, outcome: Outcome) -> None:
    """Append a line to a record, so that it survives a crash of the process."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps([outcome.test, outcome.kind.value, outcome.line]) + "\n")


def recorded(path: Path) -> Iterator[Outcome]:
    """Yield what `append` has written; a crash may have cut off the last line."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            test, kind, why = json.loads(line)
            yield Outcome(test, Kind(kind), why)
