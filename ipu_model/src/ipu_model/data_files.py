"""Reads the TOML files in `ipu_model/data`: numbers, each with its unit and where it comes from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import Any

from ipu_model.errors import Error

# The standard library's reader on Python 3.11 and later; the package it came from on 3.10.
_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


@dataclass(frozen=True)
class Fact:
    """One number of a data file: its value and unit, its source, and how sure it is."""

    value: float
    unit: str
    source: str
    confidence: str


def read_data(name: str) -> dict[str, Any]:
    """Return the contents of `ipu_model/data/<name>`."""
    text = (files("ipu_model") / "data" / name).read_text(encoding="utf-8")
    return parse(text, name)


def parse(text: str, name: str) -> dict[str, Any]:
    """Return the contents of TOML `text`; `name` is what an error calls it.

    Raises:
        Error: the text is not TOML.
    """
    try:
        found: dict[str, Any] = _toml.loads(text)
    except (ValueError, RecursionError) as error:  # the syntax, a number of thousands of digits, or endless nesting
        raise Error(f"{name} is not valid TOML: {error}.") from error
    return found


def fact(entry: object, where: str) -> Fact:
    """Check one entry `{ value, unit, source, confidence }`; `where` is what an error calls it.

    Raises:
        Error: a part is missing, or the value is not a number.
    """
    parts = ("value", "unit", "source", "confidence")
    if not isinstance(entry, dict) or set(entry) != set(parts):
        raise Error(f"{where} must be a table with {', '.join(parts)}; got {entry!r}.")
    value = entry["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Error(f"{where}.value must be a number; got {value!r}.")
    return Fact(value, str(entry["unit"]), str(entry["source"]), str(entry["confidence"]))
