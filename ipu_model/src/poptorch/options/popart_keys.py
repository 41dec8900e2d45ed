"""Checks flattened options against the backend's key tables, as PopTorch does at compile time.

The Python type of a value selects the table its key is looked up in; `data/popart_keys.json` has the tables.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from poptorch._impl import createPoptorchError
from poptorch._logging import logger

_UINT64_MAX = 2**64 - 1

# What the table is called in error messages, and how a value for it is described.
_TABLE_NAMES = {
    "bool": ("bool", "a bool"),
    "uint64": ("uint64", "an int from 0 upwards"),
    "float": ("floating point", "a float, for example 10.0"),
    "string": ("string", "a str"),
    "container": ("set / vector", "a list, set or tuple of str or int"),
    "map": ("map", "a dict with str or int values"),
}


@dataclass(frozen=True)
class KeyTables:
    """The keys of each table, the keys with a form of their own, and the member names of enum-valued keys."""

    keys: Mapping[str, frozenset[str]]
    structured: frozenset[str]
    members: Mapping[str, tuple[str, ...]]

    def table_of(self, key: str) -> str | None:
        """Return the table that holds `key`, if one does."""
        return next((table for table, keys in self.keys.items() if key in keys), None)


@lru_cache(maxsize=1)
def key_tables() -> KeyTables:
    """Read the key tables that come with the package."""
    data = json.loads((resources.files("poptorch") / "data" / "popart_keys.json").read_text(encoding="utf-8"))
    return KeyTables(
        keys={table: frozenset(data["popart"][table] + data["poptorch"][table]) for table in _TABLE_NAMES},
        structured=frozenset(data["structured"]["keys"]),
        members={key: tuple(data["enums"][enum]) for key, enum in data["enum_of_key"].items()},
    )


def validate_options(options: Mapping[str, object]) -> None:
    """Check a flattened option dict; raise `poptorch.Error` for unknown keys, wrong types and enum ranges."""
    for key, value in options.items():
        if key not in key_tables().structured:
            _check_entry(key, value)
    if "patterns" in options and "patterns_level" not in options:
        raise createPoptorchError(
            "_Popart option patterns needs patterns_level too: use _Popart.setPatterns(patterns, level)."
        )
    if "logDir" in options:
        logger.warning("_Popart option logDir is ignored: use poptorch.Options.logDir instead.")


def _check_entry(key: str, value: object) -> None:
    table = _table_for(value)
    if table is None:
        raise createPoptorchError(f"Unknown value type {type(value).__name__} for option {key}. {_what_works(key)}")
    if key not in key_tables().keys[table]:
        raise createPoptorchError(f"Unknown {_TABLE_NAMES[table][0]} option {key}. {_what_works(key)}")
    if isinstance(value, int):
        _check_int(key, value)
    elif isinstance(value, (set, list, tuple)):
        _check_elements(key, value)
    elif isinstance(value, dict):
        _check_elements(key, value.values())


def _table_for(value: object) -> str | None:
    # bool comes before int, of which it is a subclass.
    for types, table in (
        ((bool,), "bool"),
        ((float,), "float"),
        ((int,), "uint64"),
        ((str,), "string"),
        ((set, list, tuple), "container"),
        ((dict,), "map"),
    ):
        if isinstance(value, types):
            return table
    return None


def _check_int(key: str, value: int) -> None:
    if not 0 <= value <= _UINT64_MAX:
        raise createPoptorchError(f"Value {value} of option {key} is out of range: it must be from 0 to 2**64 - 1.")
    members = key_tables().members.get(key)
    if members is not None and value >= len(members):
        allowed = ", ".join(f"{number} ({name})" for number, name in enumerate(members))
        raise createPoptorchError(f"Value {int(value)} of option {key} is out of range: it must be one of {allowed}.")


def _check_elements(key: str, elements: Iterable[object]) -> None:
    for element in elements:
        if not isinstance(element, (str, int)):
            raise createPoptorchError(
                f"Unknown value type {type(element).__name__} in option {key}: its elements are str or int."
            )
        if isinstance(element, int) and key in key_tables().members:
            _check_int(key, element)


def _what_works(key: str) -> str:
    table = key_tables().table_of(key)
    if table is not None:
        return f"{key} takes {_TABLE_NAMES[table][1]}."
    every_key = sorted(set().union(*key_tables().keys.values()))
    near = difflib.get_close_matches(key, every_key, n=1)
    return f"Did you mean {near[0]}?" if near else "No backend option has this name."
