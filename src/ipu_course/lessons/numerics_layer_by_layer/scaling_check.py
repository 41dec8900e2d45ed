"""The check of a function that chooses the loss scaling from gradients, on distributions that catch short cuts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ipu_course.exercises import as_number
from ipu_course.lessons.numerics_layer_by_layer.layer_values import LARGEST_HALF, LayerValues, gradients_of

NOTHING_TO_SCALE = "There is nothing to scale, so return 1."


class GradientCase(NamedTuple):
    """Gradients of layers, the headroom, and what they are in words."""

    words: str
    gradients: list[Tensor]
    headroom: int

    @property
    def largest(self) -> float:
        """The largest absolute gradient."""
        return max(float(each.abs().max()) for each in self.gradients)


def _random(scale: float, count: int = 400) -> Tensor:
    return scale * torch.randn(count, generator=torch.Generator().manual_seed(count))


CASES = (
    GradientCase("one layer with gradients around 1e-4", [_random(1e-4)], 0),
    GradientCase("a largest gradient of exactly 2^-10", [torch.tensor([0.0, 2.0**-10, -(2.0**-12)])], 0),
    GradientCase("one layer with gradients around 1e-4 and a headroom of 4", [_random(1e-4)], 4),
    GradientCase("three layers of very different sizes", [_random(1e-7), _random(0.3), _random(1e-3, 90)], 3),
    GradientCase("10,000 tiny gradients and a single one of -0.5", [_random(1e-8, 10_000), -torch.ones(1) / 2], 2),
    GradientCase("a largest gradient of exactly 65,504 x 2^-20", [torch.tensor([65504 * 2.0**-20])], 0),
    GradientCase("gradients that are too large as they are", [torch.tensor([300_000.0, -2.0]), _random(1.0)], 1),
    GradientCase("gradients that are all zero", [torch.zeros(5), torch.zeros(2, 2)], 3),
)  # fmt: skip


def chosen_scaling(gradients: list[Tensor], headroom: int) -> float:
    """Return the largest power of two that leaves ``headroom`` powers of two free above the largest gradient.

    Without any gradient but zero, it is 1.
    """
    largest = max(float(each.abs().max()) for each in gradients)
    if largest == 0:
        return 1.0
    exponent = math.floor(math.log2(LARGEST_HALF / largest))
    while largest * 2.0**exponent > LARGEST_HALF:  # the logarithm rounds, too
        exponent -= 1
    return 2.0 ** (exponent - headroom)


def scaling_hint(choose_scaling: Any) -> str | None:
    """Return a hint unless the function chooses the right scaling in all cases."""
    if not callable(choose_scaling):
        return "choose_scaling should be a function of gradients and headroom."
    for case in CASES:
        try:
            answer = choose_scaling([each.clone() for each in case.gradients], case.headroom)
        except Exception as problem:
            if case.largest:
                raise
            return f"For {case.words}, your function raises {type(problem).__name__}. {NOTHING_TO_SCALE}"
        number = as_number(answer)
        if number is None:
            return f"For {case.words}, your function returns {answer!r}. Return a number."
        wanted = chosen_scaling(case.gradients, case.headroom)
        if number != wanted:
            return _case_hint(number, wanted, case)
    return None


def _case_hint(number: float, wanted: float, case: GradientCase) -> str:
    largest = case.largest
    found = f"For {case.words}, you choose {number:,.6g}:"
    if largest == 0:
        return f"For {case.words}, you choose {number:,.6g}. {NOTHING_TO_SCALE}"
    if number == math.log2(wanted):
        return f"{found} that is the exponent. Return the scaling itself, 2^{number:g}."
    if not math.isfinite(number) or number <= 0:
        return f"{found} a loss scaling is a positive number."
    if math.log2(number) % 1:
        return f"{found} that is no power of two. A power of two changes exponents only, and rounds nothing."
    if case.headroom and number == wanted * 4.0**case.headroom:
        return (
            f"{found} the headroom has the wrong sign. It makes the scaling smaller, by {case.headroom} powers of two, "
            "and yours is larger by as many."
        )
    if number == wanted * 2.0**case.headroom:
        return f"{found} nothing stays free for later gradients. Keep the headroom of {case.headroom} powers of two."
    if number * largest > LARGEST_HALF:
        return (
            f"{found} the largest gradient, {largest:.6g}, becomes {number * largest:,.0f} and overflows. Look for the "
            "largest absolute value of all layers, and compare with 65,504."
        )
    if number < wanted:
        return f"{found} a larger power of two fits, too. With each one that you give away, small gradients lose a bit."
    return f"{found} the largest gradient fits, but less than {case.headroom} powers of two stay free above it."


def scaling_for(choose_scaling: Any, values: LayerValues, headroom: int) -> float:
    """Return the scaling that a learner's function chooses, or ours as long as theirs is not right."""
    gradients = gradients_of(values)
    try:
        right = choose_scaling is not ... and scaling_hint(choose_scaling) is None
    except Exception:  # whatever a half-finished function raises
        right = False
    return float(choose_scaling(gradients, headroom)) if right else chosen_scaling(gradients, headroom)
