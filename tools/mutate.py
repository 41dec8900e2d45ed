"""Break one central rule at a time in a copy of the sources and see whether the tests notice. `make mutate` calls it.

Rules, changes and the tests that are to notice them: `mutations.toml` beside this file. The project's own files are
only read. Arguments, if any: words that the wanted rules contain.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    code: str
    becomes: str
    tests: tuple[str, ...]
    within: str = ""


@dataclass(frozen=True)
class Change:
    """A file, relative to the folder of the sources, and its content with the change."""

    file: Path
    content: str


def change_of(mutation: Mutation, folder: Path) -> Change:
    """Find the one place below `folder` that has the code of a mutation, and return its file changed.

    How the code is laid out, and which file it stands in, does not matter. Raises ValueError unless there is one place.
    """
    pattern = _pattern(mutation.code)
    # Most files lack one of the names: they need not be parsed.
    names = re.findall(r"(?<![\w\"'])(?!__)[A-Za-z_]\w*", f"{mutation.code} {mutation.within}")
    places: list[tuple[Path, str, ast.AST, dict[str, ast.AST]]] = []
    for source in SOURCES:
        for file in sorted((folder / source).rglob("[!0-9]*.py")):  # not the notebooks' sources
            content = file.read_text(encoding="utf-8")
            if all(name in content for name in names):
                for tree in _functions(ast.parse(content), mutation.within):
                    places += [(file, content, node, held) for node, held in _matches(pattern, tree)]
    if len(places) != 1:
        where = ", ".join(f"{file.name}:{getattr(node, 'lineno', 0)}" for file, _, node, _ in places) or "nowhere"
        raise ValueError(f"{mutation.code!r} must occur once and is found {where} ({mutation.rule}).")
    file, content, node, held = places[0]
    return Change(file.relative_to(folder), _replaced(content, node, _filled(mutation.becomes, held, content)))


def _pattern(code: str) -> ast.AST:
    (statement,) = ast.parse(code).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _functions(tree: ast.Module, within: str) -> list[ast.AST]:
    """Return the functions of that name, which may have its class before it, or the whole file if there is no name."""
    if not within:
        return [tree]
    scope, _, name = within.rpartition(".")
    scopes = [node for node in ast.walk(tree) if not scope or (isinstance(node, ast.ClassDef) and node.name == scope)]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        each for node in scopes for each in ast.iter_child_nodes(node) if isinstance(each, kinds) and each.name == name
    ]


def _matches(pattern: ast.AST, tree: ast.AST) -> Iterator[tuple[ast.AST, dict[str, ast.AST]]]:
    for node in ast.walk(tree):
        held: dict[str, ast.AST] = {}
        if type(node) is type(pattern) and _alike(pattern, node, held):
            yield node, held


def _alike(pattern: object, node: object, held: dict[str, ast.AST]) -> bool:
    """Compare two parts of programs; a name that begins with two underscores stands for any expression."""
    if isinstance(pattern, ast.Name) and pattern.id.startswith("__") and isinstance(node, ast.expr):
        held[pattern.id] = node
        return True
    if isinstance(pattern, list) and isinstance(node, list):
        return len(pattern) == len(node) and all(_alike(a, b, held) for a, b in zip(pattern, node))
    if isinstance(pattern, ast.AST) and type(pattern) is type(node):
        return all(_alike(getattr(pattern, f), getattr(node, f), held) for f in pattern._fields if f != "ctx")
    return pattern == node


def _filled(becomes: str, held: dict[str, ast.AST], content: str) -> str:
    return re.sub(r"\b__[a-z]\w*", lambda name: f"({ast.get_source_segment(content, held[name[0]])})", becomes)


def _replaced(content: str, node: Any, text: str) -> str:
    lines = content.encode().splitlines(keepends=True)  # The parser counts columns in bytes.
    begins = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    ends = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole = b"".join(lines)
    return (whole[:begins] + text.encode() + whole[ends:]).decode()


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
        if set(entry) | {"within"} != wanted:
            raise ValueError(f"mutation {entry.get('rule')!r} has the keys {sorted(entry)}, not {sorted(wanted)}.")
    return tuple(Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries)


def copy_sources(root: Path, folder: Path) -> None:
    """Copy all source folders of the project below `root` to the same places below `folder`."""
    for source in SOURCES:
        shutil.copytree(root / source, folder / source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))


def verdict_on(mutation: Mutation, folder: Path, run: Run) -> Verdict:
    """Make the change in the copy below `folder`, run its tests, and take it back."""
    change = change_of(mutation, folder)
    path = folder / change.file
    content = path.read_text(encoding="utf-8")
    path.write_text(change.content, encoding="utf-8")
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
