"""The plugin inside the pytest that runs a test file: skip tests by the rules and record the outcome of the others.

It is loaded with `-p upstream_tests.plugin` and says nothing else on its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from upstream_tests.outcomes import Kind, Outcome, append
from upstream_tests.rules import FileRules, missing_package, rules_of

_MISSING = re.compile(r"No module named '([\w.]+)'")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the files to write to and to read from."""
    parser.addoption("--record", type=Path, help="append what came of each test to this file")
    parser.addoption("--done", type=Path, help="leave out the tests named in this file, one a line")


def pytest_configure(config: pytest.Config) -> None:
    """Start recording if asked to; accept the markers of any test suite."""
    record: Path | None = config.getoption("--record")
    if record is not None:
        done: Path | None = config.getoption("--done")
        known = frozenset(done.read_text(encoding="utf-8").splitlines()) if done is not None else frozenset()
        config.pluginmanager.register(Recorder(record, known), "upstream-tests-recorder")


class Recorder:
    """Appends to a record what pytest reports."""

    def __init__(self, record: Path, done: frozenset[str]) -> None:
        self._record, self._done = record, done
        self._rules: dict[Path, FileRules] = {}
        self._failure: str | None = None
        self._skipped: str | None = None

    def _write(self, test: str, kind: Kind, line: str = "") -> None:
        append(self._record, Outcome(test, kind, line))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that cannot be imported as one failure, unless an optional package is missing."""
        if not report.failed:
            return
        line = next(_error_lines(str(report.longrepr)), "it cannot be imported")
        missing = _MISSING.search(line)
        reason = missing_package(missing.group(1)) if missing else None
        self._write(report.nodeid, *((Kind.FAILED, line) if reason is None else (Kind.LEFT_OUT, reason)))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests that can run and have not run yet."""
        kept = []
        for item in items:
            if item.nodeid in self._done:
                continue
            reason = self._rules_for(item.path).reason(_function(item), {mark.name for mark in item.iter_markers()})
            if reason is None:
                kept.append(item)
            else:
                self._write(item.nodeid, Kind.LEFT_OUT, reason)
        items[:] = kept

    def _rules_for(self, path: Path) -> FileRules:
        if path not in self._rules:
            self._rules[path] = rules_of(path.read_text(encoding="utf-8"))
        return self._rules[path]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record the start, because a test that ends the process has no report."""
        self._failure = self._skipped = None
        self._write(nodeid, Kind.STARTED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Combine the reports of a test's set-up, call and tear-down into one outcome."""
        if report.failed and self._failure is None:
            self._failure = _first_line(report)
        elif report.skipped and not hasattr(report, "wasxfail"):
            self._skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if report.when != "teardown":
            return
        if self._failure is not None:
            self._write(report.nodeid, Kind.FAILED, self._failure)
        elif self._skipped is not None:
            self._write(report.nodeid, Kind.SKIPPED, self._skipped.partition("\n")[0])
        else:
            self._write(report.nodeid, Kind.PASSED)


def _function(item: pytest.Item) -> str:
    return str(getattr(item, "originalname", None) or item.name)


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message) if crash is not None else next(_error_lines(str(report.longrepr)), "")
    # Addresses differ from run to run.
    return re.sub(r"0x[0-9a-f]+", "0x...", text.strip().partition("\n")[0])


def _error_lines(text: str) -> Iterator[str]:
    """Yield the lines that pytest marks as the error; else the last one."""
    marked = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return iter(marked or text.strip().splitlines()[-1:])
