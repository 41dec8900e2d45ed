"""Attributes of custom ops as PopART stores them: 64-bit ints, 32-bit floats, ASCII strings, and lists of these."""

from __future__ import annotations

from typing import Any

import numpy as np

from poptorch._impl import createPoptorchError

Scalar = int | float | str
Value = Scalar | list[int] | list[float] | list[str]

_LARGEST = float(np.finfo(np.float32).max)


def popart_attributes(attributes: dict[str, Any] | None) -> dict[str, Value]:
    """Return the attributes with the values that PopART would have: bools as ints, floats rounded to 32 bits.

    Raises:
        ValueError: keys that are no strings, other types of values, lists that are empty or of several types, text that
            is not ASCII, ints of more than 64 bits.
        Error: a float outside the range of float32.
    """
    found: dict[str, Value] = {}
    for key, value in (attributes or {}).items():
        if not isinstance(key, str):
            raise ValueError(f"Attribute keys must be strings; got {key!r}, {type(key)}.")
        found[_ascii(key)] = _listed(key, value) if isinstance(value, (list, tuple)) else _scalar(key, value)
    return found


def _listed(key: str, values: list[Any] | tuple[Any, ...]) -> Value:
    if not values:
        raise ValueError(f"Attribute {key!r} is an empty list, whose type is unknown.")
    if len({type(value) for value in values}) > 1:
        raise ValueError(f"The types of the elements of attribute {key!r} must all be the same; got {values!r}.")
    converted: Any = [_scalar(key, value) for value in values]
    return converted  # type: ignore[no-any-return]  # all of one type, as checked above


def _scalar(key: str, value: Any) -> Scalar:
    if isinstance(value, str):
        return _ascii(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"Attribute {key!r} does not fit in 64 bits: {value}.")
        return int(value)
    if isinstance(value, float):
        return _float32(value)
    raise ValueError(
        f"Attribute {key!r} has the unsupported type {type(value)}. Use int, float, str, or a list of one of these."
    )


def _float32(value: float) -> float:
    if value > _LARGEST:
        raise createPoptorchError(f"{value:g} is too high for a Popart float attribute.")
    if value < -_LARGEST:
        raise createPoptorchError(f"{value:g} is too low for a Popart float attribute.")
    return float(np.float32(value))


def _ascii(text: str) -> str:
    if not text.isascii():
        raise ValueError(f"{text!r} contains non-ASCII characters.")
    return text
