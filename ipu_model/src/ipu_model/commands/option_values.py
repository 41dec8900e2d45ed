"""The values of options: each type names its rule, and the nearest value that keeps it."""

from __future__ import annotations

import difflib
import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable


def whole_number(least: int) -> Callable[[str], int]:
    """Return the type of options that take a whole number from `least` on."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is not None and value >= least:
            return value
        nearest = _nearest_whole(text, least)
        raise ArgumentTypeError(f"it takes a whole number from {least} on, such as {nearest}, not {text!r}")

    return read


def seconds(text: str) -> float:
    """Return a time in seconds: a finite number from 0 on."""
    value = _number(text)
    if value is not None and value >= 0:
        return value
    nearest = "0.001 for a millisecond" if value is None else "0"
    raise ArgumentTypeError(f"it takes a number of seconds from 0 on, such as {nearest}, not {text!r}")


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """Return the type of options that take one of some names."""
    known = list(names)

    def read(text: str) -> str:
        if text in known:
            return text
        near = difflib.get_close_matches(text, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ArgumentTypeError(f"it takes one of {', '.join(known)}, not {text!r}.{hint}")

    return read


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _nearest_whole(text: str, least: int) -> int:
    value = _number(text)
    return max(least, 4 if value is None else round(value))
