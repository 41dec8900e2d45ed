"""Types of command-line values, for argparse: each turns a text into a number or says what is wrong with it."""

from __future__ import annotations

import argparse
import math


def positive_integer(text: str) -> int:
    """A whole number of at least 1."""
    return _integer_from(1, text)


def integer_from_zero(text: str) -> int:
    """A whole number of at least 0."""
    return _integer_from(0, text)


def seed(text: str) -> int:
    """A seed of a random number generator: a whole number below 2**63."""
    value = _integer(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 2**63 - 1")
    return value


def positive_number(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _integer_from(least: int, text: str) -> int:
    value = _integer(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is below {least}, the smallest value that works")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
