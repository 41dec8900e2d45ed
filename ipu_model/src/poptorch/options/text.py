"""Options written as text: a file of statements, or a JSON object of accessors."""

from __future__ import annotations

import functools
import json
import os
from enum import Enum
from types import CodeType
from typing import Any

from poptorch import enums


class ConfigFileError(Exception):
    """A statement of an options file that is not valid Python."""


def run_statements(options: Any, path: str | os.PathLike[str]) -> None:
    """Run a file whose lines are written as they would be after `options.`; `#` starts a comment.

    Every statement is compiled before the first is run. Raises `ConfigFileError` for a syntax error, counting
    statements only; errors of the statements themselves pass through.
    """
    import poptorch

    names = {"poptorch": poptorch, "options": options}
    for code in [_compiled(path, number, text) for number, text in enumerate(_statements(path), start=1)]:
        exec(code, names)


def _statements(path: str | os.PathLike[str]) -> list[str]:
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    return [f"options.{line}" for line in lines if line and not line.startswith("#")]


def _compiled(path: str | os.PathLike[str], number: int, statement: str) -> CodeType:
    try:
        return compile(statement, os.fspath(path), "exec")
    except SyntaxError as error:
        raise ConfigFileError(
            f"SyntaxError at line {number} of {os.path.basename(path)}: {error.msg}\n> {statement}"
        ) from error


def run_json(options: Any, text: str) -> None:
    """Call each accessor of a JSON object `{"dotted.accessor": value}` in order; a list is several arguments.

    Raises `json.JSONDecodeError` for malformed JSON, `ValueError` if it is no object, `AttributeError` for an
    unknown accessor.
    """
    entries = json.loads(text)
    if not isinstance(entries, dict):
        raise ValueError(
            f'Options as JSON are an object like {{"deviceIterations": 4}}, not a {type(entries).__name__}.'
        )
    for accessor, value in entries.items():
        setter = functools.reduce(getattr, accessor.split("."), options)
        if isinstance(value, list):
            setter(*value)
        else:
            setter(_enum_member(value) if isinstance(value, str) else value)


def _enum_member(text: str) -> object:
    """Return the member of `poptorch.enums` that `EnumClass.Member` names, else the text itself."""
    class_name, _, member = text.partition(".")
    enum_class = getattr(enums, class_name, None)
    if isinstance(enum_class, type) and issubclass(enum_class, Enum):
        return enum_class.__members__.get(member, text)
    return text
