"""The list of tests that are known to fail, with reasons, and how a run compares with it.

It is a CSV file with a line for each test: its name, the first line of its failure, and the reason, which a
maintainer fills in.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from upstream_tests.outcomes import Kind, Outcome


@dataclass(frozen=True)
class Expected:
    """A test that fails, its message, and why the failure is accepted."""

    test: str
    failure: str
    reason: str = ""


_COLUMNS = [field.name for field in fields(Expected)]


def read(path: Path) -> dict[str, Expected]:
    """Return the list by the tests' names.

    Raises:
        ValueError: the file has other columns.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        head = next(rows, [])
        if head != _COLUMNS:
            raise ValueError(f"{path}: the first line must be {','.join(_COLUMNS)}, not {','.join(head)}.")
        return {row[0]: Expected(*row) for row in rows if row}


def write(path: Path, entries: Iterable[Expected]) -> None:
    """Write the list, in the order of the tests' names."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(_COLUMNS)
        rows.writerows(astuple(entry) for entry in sorted(entries, key=lambda entry: entry.test))


def renewed(outcomes: Iterable[Outcome], known: Mapping[str, Expected]) -> list[Expected]:
    """Return the list after a run: failures with the reasons known so far, and tests that did not run this time."""
    outcomes = list(outcomes)
    ran = {outcome.test for outcome in outcomes if outcome.kind in (Kind.PASSED, Kind.FAILED)}
    failed = [
        Expected(o.test, o.line, known[o.test].reason if o.test in known else "")
        for o in outcomes
        if o.kind is Kind.FAILED
    ]
    return [*failed, *(entry for test, entry in known.items() if test not in ran)]


@dataclass(frozen=True)
class Comparison:
    """A comparison of a run with the list; if the first three parts are empty, the run is as expected."""

    new: tuple[Outcome, ...]
    """They failed and are not on the list."""
    passing: tuple[Expected, ...]
    """They are on the list and passed."""
    without_reason: tuple[Expected, ...]
    otherwise: tuple[tuple[Expected, Outcome], ...]
    """They failed as expected, but with another message."""

    @property
    def as_expected(self) -> bool:
        """Whether the run is as expected."""
        return not (self.new or self.passing or self.without_reason)


def compare(outcomes: Iterable[Outcome], known: Mapping[str, Expected]) -> Comparison:
    """Compare a run with the list."""
    outcomes = list(outcomes)
    failed = [outcome for outcome in outcomes if outcome.kind is Kind.FAILED]
    passed = {outcome.test for outcome in outcomes if outcome.kind is Kind.PASSED}
    return Comparison(
        new=tuple(outcome for outcome in failed if outcome.test not in known),
        passing=tuple(entry for test, entry in known.items() if test in passed),
        without_reason=tuple(entry for test, entry in known.items() if not entry.reason and test not in passed),
        otherwise=tuple(
            (known[outcome.test], outcome)
            for outcome in failed
            if outcome.test in known and outcome.line != known[outcome.test].failure
        ),
    )
