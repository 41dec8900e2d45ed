"""Break one central rule at a time in a copy of the sources and see whether the tests notice. `make mutate` calls it.

Rules, changes and the tests that are to notice them: `mutations.toml` beside this file. The project's own files are
only read. Arguments, if any: words that the wanted rules contain.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

# The standard library's reader on Python 3.11 and later; the package it came from on 3.10.
_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("mutations.toml")
SOURCES = ("ipu_model/src", "src")
PACKAGES = ("ipu_model", "popdist", "poptorch", "ipu_course")
PATIENCE_IN_S = 900

_PASSED, _FAILED = 0, 1
"""Exit codes of pytest: all tests passed, or some failed. Any other means that no test decided."""


@dataclass(frozen=True)
class Mutation:
    """One rule in words, where it is laid down, the change that breaks it, and the tests that are to fail then."""

    rule: str
    source: str
    file: str
    text: str
    becomes: str
    tests: tuple[str, ...]

    def applied(self, content: str) -> str:
        """Return the file's content with the change; raise `ValueError` unless there is one place for it."""
        if (count := content.count(self.text)) != 1:
            raise ValueError(f"{self.file}: {self.text!r} must occur once and occurs {count} times ({self.rule}).")
        return content.replace(self.text, self.becomes)


class Verdict(str, Enum):
    """What the tests said about a change."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    UNDECIDED = "UNDECIDED"


Run = Callable[[Path, Sequence[str]], int]
"""Runs test files on the sources below a folder and returns pytest's exit code."""


def read_mutations(text: str) -> tuple[Mutation, ...]:
    """Return the mutations of a table; raise `ValueError` for an entry with other keys than those of `Mutation`."""
    entries = _toml.loads(text)["mutation"]
    wanted = {field.name for field in fields(Mutation)}
    for entry in entries:
        if set(entry) != wanted:
            raise ValueError(f"mutation {entry.get('rule')!r} has the keys {sorted(entry)}, not {sorted(wanted)}.")
    return tuple(Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries)


def copy_sources(root: Path, folder: Path) -> None:
    """Copy all source folders of the project below `root` to the same places below `folder`."""
    for source in SOURCES:
        shutil.copytree(root / source, folder / source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))


def verdict_on(mutation: Mutation, folder: Path, run: Run) -> Verdict:
    """Make the change in the copy below `folder`, run its tests, and take it back."""
    path = folder / mutation.file
    content = path.read_text(encoding="utf-8")
    path.write_text(mutation.applied(content), encoding="utf-8")
    try:
        code = run(folder, mutation.tests)
    finally:
        path.write_text(content, encoding="utf-8")
    return {_PASSED: Verdict.SURVIVED, _FAILED: Verdict.CAUGHT}.get(code, Verdict.UNDECIDED)


def run_tests(folder: Path, tests: Sequence[str]) -> int:
    """Run test files of the project on the sources below `folder`, up to the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=PATIENCE_IN_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"no end after {PATIENCE_IN_S} s: {' '.join(tests)}")
        return -1
    if done.returncode not in (_PASSED, _FAILED):
        print(done.stdout)
    return done.returncode


def check_imports(folder: Path) -> None:
    """Raise `RuntimeError` if a program started as the tests are would import the project's sources, not the copy."""
    code = f"from importlib.util import find_spec\nfor name in {PACKAGES}: print(find_spec(name).origin)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=_environment(folder), check=True, stdout=subprocess.PIPE, text=True
    )
    for line in done.stdout.splitlines():
        if folder.resolve() not in Path(line).resolve().parents:
            raise RuntimeError(f"{line} would be imported in place of its copy in {folder}.")


def _environment(folder: Path) -> dict[str, str]:
    """Put the copy before the installed packages, and have hypothesis try the same examples every time.

    No bytecode is written: a changed file of the same size and second would be taken for the unchanged one.
    """
    path = os.pathsep.join(str(folder / source) for source in SOURCES)
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}


def chosen(mutations: Iterable[Mutation], words: Sequence[str]) -> tuple[Mutation, ...]:
    """Return the mutations whose rules contain all of `words`, whatever their case."""
    return tuple(each for each in mutations if all(word.lower() in each.rule.lower() for word in words))


def main(words: Sequence[str], run: Run = run_tests) -> int:
    """Print a verdict on every chosen mutation; return 0 if all are caught and the unchanged sources pass."""
    mutations = chosen(read_mutations(TABLE.read_text(encoding="utf-8")), words)
    if not mutations:
        print(f"No rule in {TABLE.name} contains {' '.join(words)!r}.")
        return 1
    with tempfile.TemporaryDirectory(prefix="ipu-course-mutate-") as name:
        folder = Path(name)
        copy_sources(ROOT, folder)
        check_imports(folder)
        if run(folder, sorted({test for each in mutations for test in each.tests})) != _PASSED:
            print("The tests fail on the unchanged sources already: no verdict means anything.")
            return 1
        verdicts = []
        for mutation in mutations:
            verdicts.append(verdict_on(mutation, folder, run))
            print(f"{verdicts[-1].value:9} {mutation.rule}", flush=True)
    caught = verdicts.count(Verdict.CAUGHT)
    print(f"{caught} of {len(verdicts)} changes caught")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
