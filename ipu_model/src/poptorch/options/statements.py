"""The statements of an options file, computed without Python's interpreter: settings, and nothing else.

A statement is a call of a setter. Its arguments are numbers, text, containers, arithmetic on numbers, a few pure
built-ins, attributes of the options, and PopTorch's enumerations, stages, phases, strategies and settings.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

_BUILTINS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (max, min, abs, round, sum, len, int, float, str, bool, tuple, list, dict, set)
}  # fmt: skip
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.UAdd: operator.pos, ast.USub: operator.neg,
    ast.Not: operator.not_,
}  # fmt: skip
_SETTINGS = ("poptorch.options", "poptorch.options.strategies", "poptorch.enums", "popdist.poptorch")


class NotASetting(Exception):
    """Valid Python that is no setting; the text names it."""


def parsed(statement: str, file: str) -> ast.expr:
    """Return the expression of one statement.

    Raises:
        SyntaxError: it is no Python.
        NotASetting: it is no call, or has parts that no setting needs.
    """
    try:
        module = ast.parse(statement, file)
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, or nested too deeply
        raise SyntaxError(str(error) or "nested too deeply") from error
    if len(module.body) != 1 or not isinstance(module.body[0], ast.Expr):
        raise NotASetting("anything but one call")
    expression = module.body[0].value
    for node in ast.walk(expression):
        _check_kind(node)
    return expression


def _check_kind(node: ast.AST) -> None:
    if not isinstance(node, (*_EVALUATORS, *_OPERATORS, ast.keyword, ast.expr_context)):
        raise NotASetting(f"Python's {type(node).__name__}")
    if isinstance(node, ast.Name) and node.id in dir(builtins) and node.id not in _BUILTINS:
        raise NotASetting(f"the built-in {node.id}")
    if isinstance(node, ast.Attribute):
        check_public(node.attr)


def check_public(name: str) -> None:
    """Refuse names that reach behind the options.

    Raises:
        NotASetting: names it.
    """
    if name.startswith("_") and name != "_Popart":
        raise NotASetting(f"the private name {name}")


def value_of(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Compute an expression; `names` are what it may name beside pure built-ins.

    Raises:
        NotASetting: an attribute or a call of anything but settings.
        Exception: whatever a setter raises.
    """
    return _EVALUATORS[type(node)](node, names)


def is_settings(value: Any) -> bool:
    """Whether `value` is an options object, or a part of one."""
    return any(kind.__module__.startswith(_SETTINGS) for kind in type(value).__mro__)


def _name(node: Any, names: Mapping[str, Any]) -> Any:
    if node.id in names:
        return names[node.id]
    if node.id in _BUILTINS:
        return _BUILTINS[node.id]
    raise NameError(f"name {node.id!r} is not defined")


def _attribute(node: Any, names: Mapping[str, Any]) -> Any:
    owner = value_of(node.value, names)
    if inspect.ismodule(owner):
        value = getattr(owner, node.attr)
        known = inspect.ismodule(value) and value.__name__ in _SETTINGS
        if not known and not (isinstance(value, type) and value.__module__.startswith(_SETTINGS)):
            raise NotASetting(f"{owner.__name__}.{node.attr}, which is no setting")
        return value
    if not is_settings(owner) and not (isinstance(owner, type) and issubclass(owner, Enum)):
        raise NotASetting(f"the attribute {node.attr} of something that is no setting")
    return getattr(owner, node.attr)


def _call(node: Any, names: Mapping[str, Any]) -> Any:
    function = value_of(node.func, names)
    of_settings = inspect.ismethod(function) and is_settings(function.__self__)
    is_class = isinstance(function, type) and function.__module__.startswith(_SETTINGS)
    if not of_settings and not is_class and function not in _BUILTINS.values():
        raise NotASetting(f"a call of {ast.unparse(node.func)}")
    arguments = [value_of(each, names) for each in node.args]
    if any(each.arg is None for each in node.keywords):
        raise NotASetting("**")
    return function(*arguments, **{each.arg: value_of(each.value, names) for each in node.keywords})


def _arithmetic(node: Any, names: Mapping[str, Any]) -> Any:
    values = [value_of(each, names) for each in ([node.left, node.right] if isinstance(node, ast.BinOp)
                                                 else [node.operand])]  # fmt: skip
    if not all(isinstance(value, (int, float)) for value in values):
        raise NotASetting("arithmetic with anything but numbers")
    return _OPERATORS[type(node.op)](*values)


def _dict(node: Any, names: Mapping[str, Any]) -> Any:
    if None in node.keys:
        raise NotASetting("**")
    return {value_of(key, names): value_of(value, names) for key, value in zip(node.keys, node.values)}


def _container(kind: Callable[[list[Any]], Any]) -> Callable[[Any, Mapping[str, Any]], Any]:
    return lambda node, names: kind([value_of(each, names) for each in node.elts])


_EVALUATORS: dict[type[ast.AST], Callable[[Any, Mapping[str, Any]], Any]] = {
    ast.Constant: lambda node, names: node.value,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.BinOp: _arithmetic,
    ast.UnaryOp: _arithmetic,
    ast.Dict: _dict,
    ast.Tuple: _container(tuple),
    ast.List: _container(list),
    ast.Set: _container(set),
}
