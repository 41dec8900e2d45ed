"""Whether values read from a file have the types that the records of a graph declare."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from ipu_model.stored.values import Invalid


def require_declared(record: Any, *, but: frozenset[str] = frozenset()) -> None:
    """Check the fields of a dataclass, and of those in it, against their annotations; numbers must not be negative.

    Raises:
        Invalid: names the first field that does not fit.
    """
    kind: Any = type(record)
    hints = _hints(kind)
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name not in but and not _fits(value, hints[field.name]):
            raise Invalid(f"the {field.name} of a {type(record).__name__} cannot be {value!r:.60}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        kinds = [parts[0]] * len(value) if isinstance(value, tuple) and parts[-1] is Ellipsis else parts
        return _all_fit(value, tuple, kinds)
    if origin is frozenset:
        return _all_fit(value, frozenset, [parts[0]] * len(value) if isinstance(value, frozenset) else [])
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if hint is Any:
        return True
    if hint is int:
        return type(value) is int and 0 <= value < 1 << 62
    if not isinstance(value, hint):
        return False
    if dataclasses.is_dataclass(value):
        require_declared(value)
    return True


def _all_fit(value: Any, kind: type, hints: Any) -> bool:
    return (
        isinstance(value, kind)
        and len(value) == len(hints)  # type: ignore[arg-type]  # tuples and sets have a length
        and all(_fits(item, hint) for item, hint in zip(value, hints))  # type: ignore[call-overload]
    )
