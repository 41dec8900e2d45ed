"""Turns records (dataclasses and named tuples) into plain JSON values and back, following their type hints.

A tuple of records becomes a table: `{"columns": [names], "rows": [[values], ...]}`. Nothing but these values is
ever made from what is read: no names are looked up and no code is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ipu_model.errors import Error

_MOST_QUOTED = 60


def encode(value: Any, kind: Any, where: str) -> Any:
    """Return `value`, which a field called `where` of type `kind` holds, as what `json` can write.

    Raises:
        Error: the value is not of that type, or is a number without an end.
    """
    if _is_record(kind):
        return {name: encode(getattr(value, name), part, f"{where}.{name}") for name, part in _parts(kind).items()}
    origin = get_origin(kind)
    if origin is Mapping:
        return {_scalar(key, str, where): encode(each, get_args(kind)[1], f"{where}[{key!r}]")
                for key, each in value.items()}  # fmt: skip
    if origin is tuple:
        return _encode_all(value, get_args(kind)[0], where)
    return _scalar(value, kind, where)


def decode(data: Any, kind: Any, where: str) -> Any:
    """Return the value of type `kind` that `encode` made `data` of.

    Raises:
        Error: a field is missing, unknown, or of another type; the message names it.
    """
    if _is_record(kind):
        table = _as_object(data, where)
        return kind(**_fields(table, _parts(kind), where, lambda name: f"{where}.{name}"))
    origin = get_origin(kind)
    if origin is Mapping:
        table = _as_object(data, where)
        return {key: decode(each, get_args(kind)[1], f"{where}[{key!r}]") for key, each in table.items()}
    if origin is tuple:
        return _decode_all(data, get_args(kind)[0], where)
    return _scalar(data, kind, where)


def _encode_all(values: Iterable[Any], kind: Any, where: str) -> Any:
    if not _is_record(kind):
        return [encode(each, kind, f"{where}[{index}]") for index, each in enumerate(values)]
    parts = _parts(kind)
    rows = [
        [encode(getattr(each, name), part, f"{where}[{index}].{name}") for name, part in parts.items()]
        for index, each in enumerate(values)
    ]
    return {"columns": list(parts), "rows": rows}


def _decode_all(data: Any, kind: Any, where: str) -> tuple[Any, ...]:
    if not _is_record(kind):
        return tuple(decode(each, kind, f"{where}[{index}]") for index, each in enumerate(_as_list(data, where)))
    table = _as_object(data, where)
    _require_names(table, ("columns", "rows"), where)
    columns = [_scalar(name, str, f"{where}.columns") for name in _as_list(table["columns"], f"{where}.columns")]
    _require_names(columns, _parts(kind), where)
    return tuple(
        _row(row, columns, kind, f"{where}[{index}]")
        for index, row in enumerate(_as_list(table["rows"], f"{where}.rows"))
    )


def _row(row: Any, columns: list[str], kind: Any, where: str) -> Any:
    values = _as_list(row, where)
    if len(values) != len(columns):
        raise Error(f"{where} has {len(values)} values for {len(columns)} columns.")
    return kind(**_fields(dict(zip(columns, values)), _parts(kind), where, lambda name: f"{where}.{name}"))


def _fields(
    table: Mapping[str, Any], parts: Mapping[str, Any], where: str, named: Callable[[str], str]
) -> dict[str, Any]:
    _require_names(table, parts, where)
    return {name: decode(table[name], part, named(name)) for name, part in parts.items()}


def _require_names(found: Iterable[str], wanted: Iterable[str], where: str) -> None:
    names, expected = list(found), list(wanted)
    missing = [name for name in expected if name not in names]
    extra = [name for name in names if name not in expected]
    if missing:
        raise Error(f"{where} lacks the field {missing[0]!r}.")
    if extra:
        raise Error(f"{where} has a field {_quoted(extra[0])} that is not known; it has {', '.join(expected)}.")
    if len(names) != len(expected):
        raise Error(f"{where} names a field twice.")


def _scalar(value: Any, kind: Any, where: str) -> Any:
    """Return a text, number, truth value or `None` as the plain Python value, if `kind` allows it."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and NoneType in kinds:
        return None
    if isinstance(value, bool):
        if bool in kinds:
            return value
    elif isinstance(value, str):
        if str in kinds:
            return value
    elif isinstance(value, Integral):
        if int in kinds or float in kinds:
            return int(value)
    elif isinstance(value, Real) and float in kinds:
        if not math.isfinite(value):
            raise Error(f"{where} is {value!r}: it must be a finite number.")
        return float(value)
    raise Error(f"{where} must be {_named(kinds)}; it is {_quoted(value)}.")


def _as_object(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise Error(f"{where} must be an object with named fields; it is {_quoted(data)}.")
    return data


def _as_list(data: Any, where: str) -> list[Any]:
    if not isinstance(data, list):
        raise Error(f"{where} must be a list; it is {_quoted(data)}.")
    return data


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind) or hasattr(kind, "_fields")


@lru_cache(maxsize=64)
def _parts(kind: Any) -> Mapping[str, Any]:
    """Return the types of a record's fields by name, in their order."""
    hints = get_type_hints(kind)
    names = getattr(kind, "_fields", None) or kind.__dataclass_fields__
    return {name: hints[name] for name in names}


def _named(kinds: Iterable[Any]) -> str:
    names = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", NoneType: "null"}
    return " or ".join(names[kind] for kind in kinds)


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}..."
