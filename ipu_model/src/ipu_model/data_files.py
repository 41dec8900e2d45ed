"""Reads the TOML files in `ipu_model/data`: numbers, each with its unit and where it comes from."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec

from ipu_model.errors import Error


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number of a data file: its value and unit, its source, and how sure it is."""

    value: int | float
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
        return msgspec.toml.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError) as error:  # the syntax, a number of thousands of digits, or endless nesting
        raise Error(f"{name} is not valid TOML: {error}.") from error


def fact(entry: object, where: str) -> Fact:
    """Check one entry `{ value, unit, source, confidence }`; `where` is what an error calls it.

    Raises:
        Error: a part is missing, or the value is not a number.
    """
    try:
        return msgspec.convert(entry, Fact)
    except msgspec.ValidationError as problem:
        parts = ", ".join(Fact.__struct_fields__)
        raise Error(f"{where} must be a table with {parts}: {problem}.") from problem
