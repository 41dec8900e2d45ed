"""Lesson 01's explorer: what a loss scaling does to both ends of the distribution of gradients."""

from __future__ import annotations

from typing import Any, Mapping

from torch import Tensor

from ipu_course import figures
from ipu_course.explorers import Explorer, Slider, View
from ipu_course.lessons.half_precision.gradient_sizes import ACTIVATIONS, WEIGHTS, share_below

LARGEST_HALF = 65504.0
BANDS = {"underflow": (-40.0, -25.0), "digits lost": (-25.0, -14.0), "overflow": (16.0, 24.0)}
LEAST_SHARE = 0.01


def scaling_view(gradients: Mapping[str, Tensor], exponent: int) -> View:
    """Return the distribution of ``gradients`` times 2 to the power of ``exponent``, against the range of float16."""
    scaled: dict[str, Any] = {
        f"{kind} x 2^{exponent}": 2.0**exponent * gradients[kind] for kind in (ACTIVATIONS, WEIGHTS)
    }
    drawn = figures.histogram_figure(
        scaled, "absolute gradient", "Gradients of ResNet-101 before training", log2=True, bands=BANDS
    )
    below = share_below(2.0**exponent * gradients[ACTIVATIONS], -14)
    lost = share_below(2.0**exponent * gradients[ACTIVATIONS], -25)
    largest = 2.0**exponent * max(float(gradients[kind].max()) for kind in (ACTIVATIONS, WEIGHTS))
    rounded = f"{float(f'{largest:.1g}'):,.0f}"  # further digits differ between processors
    row = {
        "loss scaling": f"2^{exponent}",
        "activation gradients below 2^-25": f"{lost:.1%}",
        "activation gradients below 2^-14": f"{below:.0%}",
        "largest gradient": f"about {rounded}",
    }
    description = (
        f"Share of gradients by powers of two, for a loss scaling of 2^{exponent}: {below:.0%} of the activation "
        f"gradients lie below 2^-14, where fp16 loses digits, {lost:.1%} below 2^-25, where they become zero. The "
        f"largest gradient is about {rounded}; fp16 ends at 65,504."
    )
    return View(drawn, _takeaway(below, largest), description, [row])


def _takeaway(below: float, largest: float) -> str:
    if largest > LARGEST_HALF:
        return "Scaled too far: the largest gradients overflow."
    if below >= LEAST_SHARE:
        return "Many small gradients lie where fp16 loses digits, and at the other end there is room."
    return "Nearly all gradients fit into the range of fp16, at both ends."


LOSS_SCALING = Explorer(
    controls={"exponent": Slider("loss scaling, as a power of two", tuple(range(17)), 0)},
    view=scaling_view,
)
