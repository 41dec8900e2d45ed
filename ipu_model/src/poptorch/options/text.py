"""Options written as text: a file of statements, or a JSON object of accessors."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import os
from enum import Enum
from typing import Any

from poptorch import enums
from poptorch.options.statements import NotASetting, check_public, is_settings, parsed, value_of

# A file of a few lines; one of many megabytes was meant for something else.
_MOST_CHARACTERS = 1_000_000


class ConfigFileError(Exception):
    """A statement of an options file that is no setting, or a file that is none of text."""


def run_statements(options: Any, path: str | os.PathLike[str]) -> None:
    """Run a file whose lines are written as they would be after `options.`; `#` starts a comment.

    Every statement is read before the first is run. Raises `ConfigFileError` for a syntax error and for anything but
    settings, counting statements only; errors of the setters themselves pass through.
    """
    import poptorch

    names = {"poptorch": poptorch, "options": options}
    statements = [(number, text) for number, text in enumerate(_statements(path), start=1)]
    for (number, text), expression in [(each, _parsed(path, *each)) for each in statements]:
        try:
            value_of(expression, names)
        except NotASetting as error:
            raise _refused(path, number, text, error) from None


def _statements(path: str | os.PathLike[str]) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{os.fspath(path)} is not a text file in UTF-8.") from error
    if len(text) > _MOST_CHARACTERS:
        raise ConfigFileError(f"{os.fspath(path)} is no file of options: it has more than {_MOST_CHARACTERS} letters.")
    lines = [line.strip() for line in text.split("\n")]
    return [f"options.{line}" for line in lines if line and not line.startswith("#")]


def _parsed(path: str | os.PathLike[str], number: int, statement: str) -> ast.expr:
    try:
        return parsed(statement, os.fspath(path))
    except SyntaxError as error:
        raise ConfigFileError(
            f"SyntaxError at line {number} of {os.path.basename(path)}: {error.msg}\n> {statement}"
        ) from error
    except NotASetting as error:
        raise _refused(path, number, statement, error) from None


def _refused(path: str | os.PathLike[str], number: int, statement: str, error: NotASetting) -> ConfigFileError:
    return ConfigFileError(
        f"Line {number} of {os.path.basename(path)} has {error}. A file of options may call setters with numbers, "
        "text, containers and PopTorch's own settings; nothing else in it is run. Set this in the program.\n"
        f"> {statement}"
    )


def run_json(options: Any, text: str) -> None:
    """Call each accessor of a JSON object `{"dotted.accessor": value}` in order; a list is several arguments.

    Raises `json.JSONDecodeError` for malformed JSON, `ValueError` if it is no object or nested too deeply,
    `AttributeError` for an unknown or private accessor, `TypeError` for one that is no setter.
    """
    try:
        entries = json.loads(text)
    except RecursionError as error:
        raise ValueError("Options as JSON are nested too deeply.") from error
    if not isinstance(entries, dict):
        raise ValueError(
            f'Options as JSON are an object like {{"deviceIterations": 4}}, not a {type(entries).__name__}.'
        )
    for accessor, value in entries.items():
        setter = _setter(options, accessor)
        if isinstance(value, list):
            setter(*value)
        else:
            setter(_enum_member(value) if isinstance(value, str) else value)


def _setter(options: Any, accessor: str) -> Any:
    names = accessor.split(".")
    try:
        for name in names:
            check_public(name)
    except NotASetting as error:
        raise AttributeError(f"Options as JSON: {accessor} has {error}.") from None
    setter = functools.reduce(getattr, names, options)
    if not inspect.ismethod(setter) or not is_settings(setter.__self__):
        raise TypeError(f"Options as JSON: {accessor} is no setter of poptorch.Options.")
    return setter


def _enum_member(text: str) -> object:
    """Return the member of `poptorch.enums` that `EnumClass.Member` names, else the text itself."""
    class_name, _, member = text.partition(".")
    enum_class = getattr(enums, class_name, None)
    if isinstance(enum_class, type) and issubclass(enum_class, Enum):
        return enum_class.__members__.get(member, text)
    return text
