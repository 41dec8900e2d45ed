"""Options written as text: a file of statements, or a JSON object of setters. Neither can do anything but set options.

A statement is a call of a setter. Its arguments are numbers, text, containers, arithmetic on numbers, a few pure
built-ins, attributes of the options, and PopTorch's enumerations, stages, phases, strategies and settings.
"""

from __future__ import annotations

import ast
import builtins
import errno
import inspect
import json
import operator
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from functools import partial, reduce
from types import MappingProxyType
from typing import Any

from ipu_model.capture.torch_private import switched
from ipu_model.whole_files import read_whole
from poptorch import enums
from poptorch._options_impl import Freezable
from poptorch.options import strategies
from poptorch.options.sub_options import TensorLocationSettings

# An options file has a few lines; a file of many megabytes was passed by mistake.
_MOST_BYTES = 1_000_000
_PURE: tuple[Any, ...] = (max, min, abs, round, sum, len, int, float, str, bool, tuple, list, dict, set)
_BUILTINS: dict[str, Callable[..., Any]] = {function.__name__: function for function in _PURE}
_Operators = dict[type[ast.AST], Callable[..., Any]]
_SUMS: _Operators = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_QUOTIENTS: _Operators = {ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
_OPERATORS = _SUMS | _QUOTIENTS | {ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Not: operator.not_}
_ENUMS = {name: getattr(enums, name) for name in enums.__all__}
_CLASSES = {
    **{name: getattr(strategies, name) for name in strategies.__all__},
    "TensorLocationSettings": TensorLocationSettings,
}
# The names that a statement can use after `poptorch.`.
_MODULES = {"enums": MappingProxyType(_ENUMS), "options": MappingProxyType(_CLASSES)}
_POPTORCH = MappingProxyType({**_ENUMS, **_CLASSES, **_MODULES})
# Objects whose attributes may be read and whose methods may be called.
_SETTINGS = (Freezable, Enum, strategies._IExecutionStrategy, strategies.Stage, strategies.Phase)
_Expression = Callable[[Freezable], Any]
_being_loaded: ContextVar[tuple[str, ...]] = ContextVar("poptorch_options_files", default=())


class ConfigFileError(Exception):
    """A statement of an options file is not a setting, or the file is not a text file."""

    __module__ = "poptorch.options"  # where programs import it from, and so what a traceback names


class _NotASetting(Exception):
    """The statement is valid Python but not a setting; the message names the reason."""


def parseAndSetOptions(options: Freezable, filepath: str | os.PathLike[str]) -> None:
    """Run a file whose lines are written as they would be after `options.`; `#` starts a comment.

    Every statement is parsed before the first one runs. Line numbers in a `ConfigFileError` count statements only.
    """
    path, outer = os.path.abspath(filepath), _being_loaded.get()
    if path in outer:
        raise ConfigFileError(f"{os.fspath(filepath)} loads itself, directly or through another file.")
    try:
        text = read_whole(filepath, _MOST_BYTES).decode()
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EINVAL):
            raise ConfigFileError(f"{os.fspath(filepath)} is not an options file: {error.strerror}.") from error
        raise
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{os.fspath(filepath)} is not a text file in UTF-8.") from error
    lines = [line.strip() for line in text.splitlines()]
    statements = list(enumerate((f"options.{line}" for line in lines if line and line[0] != "#"), start=1))
    compiled: list[_Expression] = []
    for number, statement in statements:
        with _refused(filepath, number, statement):
            compiled.append(_parsed(statement))
    with switched(_being_loaded.get, _being_loaded.set, (*outer, path)):
        for (number, statement), run in zip(statements, compiled, strict=True):
            with _refused(filepath, number, statement):
                run(options)


@contextmanager
def _refused(path: str | os.PathLike[str], number: int, statement: str) -> Iterator[None]:
    file = os.path.basename(path)
    try:
        yield
    except SyntaxError as error:
        raise ConfigFileError(f"SyntaxError at line {number} of {file}: {error.msg}\n> {statement}") from error
    except _NotASetting as error:
        raise ConfigFileError(
            f"Line {number} of {file} has {error}. A file of options may call setters with numbers, text, containers "
            f"and PopTorch's own settings; nothing else in it is run. Set this in the program.\n> {statement}"
        ) from None


def _parsed(statement: str) -> _Expression:
    try:
        body = ast.parse(statement).body
        if len(body) != 1 or not isinstance(body[0], ast.Expr):
            raise _NotASetting("anything but one call")
        return _compiled(body[0].value)
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, or nested too deeply
        raise SyntaxError(str(error) or "nested too deeply") from error


def _compiled(node: ast.AST) -> _Expression:
    """Return a callable that evaluates an expression; raise `_NotASetting` if settings do not allow some part of it."""
    match node:
        case ast.Constant(value=value):
            return lambda options: value
        case ast.Name(id="options"):
            return lambda options: options
        case ast.Name(id=name):
            return _named(name)
        case ast.Attribute(value=value, attr=name):
            if _is_private(name):
                raise _NotASetting(f"the private name {name}")
            return _applied(lambda owner: _attribute(owner, name), value)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            names = [keyword.arg for keyword in keywords]
            return _applied(partial(_called, names), function, *arguments, *(keyword.value for keyword in keywords))
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            return _applied(partial(_calculated, _OPERATORS[type(operation)]), left, right)
        case ast.UnaryOp(op=operation, operand=operand) if type(operation) in _OPERATORS:
            return _applied(partial(_calculated, _OPERATORS[type(operation)]), operand)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return _applied(lambda *parts: dict(zip(parts[: len(keys)], parts[len(keys) :])), *keys, *values)
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            kind = {ast.Tuple: tuple, ast.List: list, ast.Set: set}[type(node)]
            return _applied(lambda *parts: kind(parts), *elements)
    raise _NotASetting(f"Python's {type(getattr(node, 'op', node)).__name__}")


def _applied(function: Callable[..., Any], *nodes: Any) -> _Expression:
    parts = [_compiled(node) for node in nodes]
    return lambda options: function(*(part(options) for part in parts))


def _named(name: str) -> _Expression:
    known = {"poptorch": _POPTORCH, **_BUILTINS}
    if name in known:
        return lambda options: known[name]
    if name in dir(builtins):
        raise _NotASetting(f"the built-in {name}")
    raise NameError(f"name {name!r} is not defined")


def _is_private(name: str) -> bool:
    return name.startswith("_") and name != "_Popart"


def _attribute(owner: Any, name: str) -> Any:
    if isinstance(owner, MappingProxyType):
        if name not in owner:
            raise _NotASetting(f"poptorch.{name}, which is no setting")
        return owner[name]
    if not isinstance(owner, _SETTINGS) and not (isinstance(owner, type) and issubclass(owner, Enum)):
        raise _NotASetting(f"the attribute {name} of something that is no setting")
    return getattr(owner, name)


def _called(keywords: list[str | None], function: Any, *arguments: Any) -> Any:
    is_setter = inspect.ismethod(function) and isinstance(function.__self__, _SETTINGS)
    if not is_setter and not any(function is known for known in (*_POPTORCH.values(), *_BUILTINS.values())):
        raise _NotASetting(f"a call of {getattr(function, '__name__', function)}")
    if None in keywords:
        raise _NotASetting("**")
    first = len(arguments) - len(keywords)
    return function(*arguments[:first], **dict(zip(map(str, keywords), arguments[first:])))


def _calculated(operation: Callable[..., Any], *operands: Any) -> Any:
    if not all(isinstance(value, (int, float)) for value in operands):
        raise _NotASetting("arithmetic with anything but numbers")
    return operation(*operands)


def run_json(options: Freezable, text: str) -> None:
    """Call each accessor of a JSON object `{"dotted.accessor": value}` in order; a list is several arguments."""
    try:
        entries = json.loads(text)
    except RecursionError as error:
        raise ValueError("Options as JSON are nested too deeply.") from error
    if not isinstance(entries, dict):
        raise ValueError(
            f'Options as JSON are an object like {{"deviceIterations": 4}}, not a {type(entries).__name__}.'
        )
    for accessor, value in entries.items():
        names = accessor.split(".")
        if private := next(filter(_is_private, names), None):
            raise AttributeError(f"Options as JSON: {accessor} has the private name {private}.")
        setter: Any = reduce(getattr, names, options)
        if not inspect.ismethod(setter) or not isinstance(setter.__self__, Freezable):
            raise TypeError(f"Options as JSON: {accessor} is not a setter of poptorch.Options.")
        if isinstance(value, list):
            setter(*value)
        elif isinstance(value, str):
            # `EnumClass.Member` is that member of `poptorch.enums`, any other text stays as it is.
            class_name, _, member = value.partition(".")
            setter(getattr(_ENUMS.get(class_name), "__members__", {}).get(member, value))
        else:
            setter(value)
