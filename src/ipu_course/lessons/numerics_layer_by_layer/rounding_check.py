"""The check of stochastic rounding: neighbours only, without bias, each element on its own, with the generator."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

COPIES = 20_000
SIGMAS = 5.0
# In a binade, beside powers of two, negative, below 2^-14, below the smallest number, and large: none is on the grid.
VALUES = (1.0003, -24.003, 2.0005, 1.9997, 3.3e-7, 1e-8, 40_010.0, -0.1001)
ON_THE_GRID = (0.0, 0.5, -3.0, 2.0**-24, 24.015625, 65504.0)


def neighbours(value: float) -> tuple[float, float]:
    """Return the float16 numbers below and above ``value``, which are equal for a value on the grid."""
    _, exponent = torch.frexp(torch.tensor(value, dtype=torch.float64))
    spacing = 2.0 ** max(int(exponent) - 11, -24)
    below = (value // spacing) * spacing
    return (below, below) if below == value else (below, below + spacing)


def rounding_hint(round_stochastically: Any) -> str | None:
    """Return a hint unless the function rounds stochastically; with fixed seeds, so that it always says the same."""
    if not callable(round_stochastically):
        return "round_stochastically should be a function of a tensor and a generator."
    values = torch.tensor(VALUES)[:, None].repeat(1, COPIES)
    kept = values.clone()
    rounded = round_stochastically(values, torch.Generator().manual_seed(1))
    hint = _kind_hint(rounded, values) or _grid_hint(round_stochastically)
    if hint is not None:
        return hint
    if not torch.equal(values, kept):
        return "Your function changes the tensor that it gets. Return a new one."
    others = [round_stochastically(values, torch.Generator().manual_seed(seed)) for seed in range(2, 8)]
    hint = _neighbours_hint(rounded) or _variety_hint(rounded, others) or _bias_hint(rounded)
    if hint is not None:
        return hint
    torch.rand(7)  # whoever draws from PyTorch's own generator gets other numbers now
    if not torch.equal(rounded, round_stochastically(values, torch.Generator().manual_seed(1))):
        return "The same seed gives another result. Pass the generator on: torch.rand(..., generator=generator)."
    return None


def _kind_hint(rounded: Any, values: Tensor) -> str | None:
    if not isinstance(rounded, Tensor) or rounded.shape != values.shape:
        return f"Return a tensor of the same shape; for {list(values.shape)} yours returned {_shape(rounded)}."
    if rounded.dtype is not torch.float16:
        return f"Return fp16; yours is {rounded.dtype}."
    return None


def _shape(rounded: Any) -> object:
    return list(rounded.shape) if isinstance(rounded, Tensor) else rounded


def _grid_hint(function: Any) -> str | None:
    exact = torch.tensor(ON_THE_GRID)
    for seed in range(8):
        found = function(exact.clone(), torch.Generator().manual_seed(seed)).float()
        wrong = (found != exact).nonzero().flatten().tolist()
        if wrong:
            value = ON_THE_GRID[wrong[0]]
            return f"{value:g} is an fp16 number already, and must stay: yours became {found[wrong[0]]:.8g}."
    return None


def _neighbours_hint(rounded: Tensor) -> str | None:
    for value, row in zip(VALUES, rounded.double()):
        low, high = neighbours(value)
        others = row[(row != low) & (row != high)]
        if len(others):
            return (
                f"{value:g} became {float(others[0]):.8g}, but its neighbours are {low:.8g} and {high:.8g}. How far "
                "apart are fp16 numbers there?"
            )
    return None


def _variety_hint(rounded: Tensor, others: Sequence[Tensor]) -> str | None:
    single = [row for row in range(len(VALUES)) if len(rounded[row].unique()) == 1]
    if not single:
        return None
    if any(bool(other[row, 0] != rounded[row, 0]) for other in others for row in single):
        return "All elements of a tensor are rounded in the same direction. Draw one number for each element."
    value, became = VALUES[single[0]], float(rounded[single[0], 0])
    return f"All {COPIES:,} copies of {value:g} became {became:.8g}. Some should be the other neighbour."


def _bias_hint(rounded: Tensor) -> str | None:
    for value, row in zip(VALUES, rounded.double()):
        low, high = neighbours(value)
        wanted, share = (value - low) / (high - low), float((row == high).double().mean())
        if abs(share - wanted) > SIGMAS * (wanted * (1 - wanted) / COPIES) ** 0.5 + 1e-4:
            return (
                f"{share:.1%} of the copies of {value:g} are rounded up, so their mean is not {value:g}. How near to "
                "the upper neighbour is it?"
            )
    return None
