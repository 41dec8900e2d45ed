"""Checks of optimiser arguments that PyTorch does not make."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch

ACCUMULATOR_DTYPES = (torch.float32, torch.float16)
ACCUMULATOR_RULE = "Accumulation types must be either torch.float32 or torch.float16"


def given(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that were passed, which are those that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def require_number(name: str, value: object) -> None:
    """Raise AssertionError unless `value` is a plain number."""
    if not isinstance(value, Real):
        nearest = f"Use float({name})." if isinstance(value, torch.Tensor) else "Pass an int or a float."
        raise AssertionError(f"Expected a number for {name}, not {value!r} of type {type(value).__name__}. {nearest}")


def require_betas(betas: object) -> None:
    """Raise AssertionError unless `betas` is a tuple of two numbers."""
    if not isinstance(betas, tuple) or len(betas) != 2:
        raise AssertionError(f"Expected a tuple of two numbers for betas, such as (0.9, 0.999), not {betas!r}.")
    for index, beta in enumerate(betas):
        require_number(f"betas[{index}]", beta)


def require_numbers(arguments: dict[str, Any]) -> None:
    """Raise AssertionError unless every argument is a number, and `betas` two of them."""
    for name, value in arguments.items():
        if name == "betas":
            require_betas(value)
        else:
            require_number(name, value)


def accumulator_dtypes(**dtypes: torch.dtype | None) -> dict[str, torch.dtype]:
    """Return the dtypes, float32 for None; raises AssertionError for any but float32 and float16."""
    chosen = {name: torch.float32 if dtype is None else dtype for name, dtype in dtypes.items()}
    for name, dtype in chosen.items():
        if dtype not in ACCUMULATOR_DTYPES:
            raise AssertionError(f"{ACCUMULATOR_RULE}, but {name} is {dtype}.")
    return chosen
