"""Data files in a lesson's folder: one JSON table each, whose entries notebooks fetch by key."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Mapping, TypeVar

Entry = TypeVar("Entry")


def read_table(file: Path) -> dict[str, object]:
    """Return the table in ``file``; an empty one where the lesson has no such file.

    Raises ``ValueError`` for a file that holds no JSON table.
    """
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise broken(file, problem) from problem
    if not isinstance(content, dict):
        raise broken(file, "it holds no table of entries by key")
    return content


def entry_of(table: Mapping[str, Entry], file: Path, what: str, key: str) -> Entry:
    """Return the entry called ``key``; ``what`` says in the error what the file's entries are.

    Raises ``ValueError`` with the nearest key for one that the table does not have.
    """
    if key not in table:
        nearest = get_close_matches(key, table, n=1, cutoff=0) or ["none at all"]
        raise ValueError(f"{file.parent.name}/{file.name} has no {what} {key!r}; the nearest is {nearest[0]!r}")
    return table[key]


def broken(file: Path, problem: object) -> ValueError:
    """Return the error for a ``file`` that breaks a rule."""
    return ValueError(f"{file.parent.name}/{file.name}: {problem}")
