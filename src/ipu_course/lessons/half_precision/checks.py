"""The exercises of the half-precision lesson: a loss scaling, and a norm that does not overflow."""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping

import torch
from torch import Tensor, nn

import poptorch
from ipu_course.checks import check, number_hint
from ipu_course.lessons.half_precision.gradient_sizes import ACTIVATIONS, WEIGHTS, share_below

LESSON = "01"
LARGEST_HALF = 65504.0
SMALLEST_NORMAL = -14  # the exponent: below 2^-14, fp16 loses digits
MOST_BELOW = 0.01

EPSILON = 1e-5
TOLERANCE = 0.02
MODERATE, LARGE = 1.0, 1000.0  # the square of the latter and its mean are far above 65,504


def check_loss_scaling(loss_scaling: object, gradients: Mapping[str, Tensor]) -> None:
    """Exercise 1: a scaling that brings the ``gradients`` (see ``gradient_sizes``) into the range of fp16."""
    check(
        LESSON,
        "Exercise 1",
        {"loss_scaling": loss_scaling},
        lambda: _scaling_hint(loss_scaling, gradients),
        "Nearly all activation gradients have all their digits, and the largest gradient still fits below 65,504. "
        "The hands-on takes 1000 [1].",
    )


def _scaling_hint(loss_scaling: object, gradients: Mapping[str, Tensor]) -> str | None:
    wrong = number_hint("loss_scaling", loss_scaling)
    if wrong or not isinstance(loss_scaling, (int, float)):
        return wrong
    if not math.isfinite(loss_scaling) or loss_scaling <= 0:
        return f"loss_scaling multiplies the loss: a finite number above 0, not {loss_scaling!r}."
    if loss_scaling < 1:
        return (
            f"{loss_scaling:g} makes small gradients smaller still. PopTorch multiplies the loss by loss_scaling, "
            "and divides by it before the update."
        )
    if loss_scaling == 1:
        return "1 is the default: it changes nothing, and so nothing is saved."
    largest = max(float(sizes.max()) for sizes in gradients.values())
    kind = max((WEIGHTS, ACTIVATIONS), key=lambda each: float(gradients[each].max()))
    if largest * loss_scaling > LARGEST_HALF:
        return (
            f"The largest gradient, one of the {kind}, is above 2^{math.floor(math.log2(largest))}: times "
            f"{loss_scaling:g} it overflows, as 65,504 is the largest number. An IPU clips it and reports nothing."
        )
    below = share_below(gradients[ACTIVATIONS] * loss_scaling, SMALLEST_NORMAL)
    if below >= MOST_BELOW:
        return f"{below:.1%} of the activation gradients are still below 2^-14, and at most 1 % should be: scale more."
    return None


def check_norm(norm: Callable[[Tensor], Any]) -> None:
    """Exercise 2: ``norm`` divides fp16 rows by their root mean square, and gives fp16 without overflow."""
    check(
        LESSON,
        "Exercise 2",
        {"normalised": ... if _is_open(norm) else norm},
        lambda: _norm_hint(norm),
        "The square and its mean are computed in float32, and only the result goes back to float16.",
    )


def _is_open(norm: Any) -> bool:
    """Whether the function still gives the dots of the starter."""
    try:
        return norm(torch.ones(2, 8)) is ...
    except Exception:  # whatever an answer raises, the check reports it later
        return False


def _norm_hint(norm: Any) -> str | None:
    rows = torch.linspace(-1.0, 1.0, 16).repeat(2, 1) * torch.tensor([[1.0], [0.6]])
    for size in (MODERATE, LARGE):
        images = (rows * size).half()
        result = _on_device(norm, images)
        hint = _kind_hint(result, images) or _value_hint(result, images, size)
        if hint:
            return hint
    return None


class _Wrapped(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Any:
        return self.function(images)


def _on_device(norm: Callable[[Tensor], Any], images: Tensor) -> Any:
    model = poptorch.inferenceModel(_Wrapped(norm), poptorch.Options().showCompilationProgressBar(False))
    result = model(images)
    model.destroy()
    return result


def _kind_hint(result: Any, images: Tensor) -> str | None:
    if not isinstance(result, Tensor) or result.shape != images.shape:
        shape = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        return f"The result should have the shape of x, {list(images.shape)}; it is {shape}."
    if result.dtype is not torch.float16:
        return (
            f"The result is {str(result.dtype).replace('torch.', '')}: every layer that follows would compute in it, "
            "with twice the memory. Convert back to float16 at the end."
        )
    return None


def _value_hint(result: Tensor, images: Tensor, size: float) -> str | None:
    wide = images.double()
    wanted = wide / (wide.pow(2).mean(-1, keepdim=True) + EPSILON).sqrt()
    if torch.allclose(result.double(), wanted, rtol=TOLERANCE, atol=TOLERANCE):
        return None
    if size == MODERATE:
        return (
            "Already numbers around 1 come out wrong: divide x by the square root of the mean of its squares along "
            "the last dimension (plus 1e-5)."
        )
    if bool(result.isnan().any()):
        return "Numbers around 1,000 give NaN: something was divided by 0. Convert x before you square it."
    if float(result.double().norm()) > 1.5 * float(wanted.norm()):
        return (
            "Numbers around 1,000 come out too large: their squares, or the mean of the squares, exceed 65,504 and are "
            "clipped to it, so the root is too small. Convert before the square, and back at the end."
        )
    return "Numbers around 1,000 come out finite but wrong: do not cut or change x, compute its square in float32."
