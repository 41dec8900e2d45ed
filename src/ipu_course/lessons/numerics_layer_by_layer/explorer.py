"""Lesson 16's explorer: one quantity of one layer, under a loss scaling, above the range of half precision."""

from __future__ import annotations

from ipu_course.explorers import Choice, Explorer, Slider, View
from ipu_course.lessons.numerics_layer_by_layer.layer_values import (
    ACTIVATION_GRADIENTS,
    LARGEST_HALF,
    QUANTITIES,
    LayerValues,
    is_scaled,
    range_shares,
)
from ipu_course.lessons.numerics_layer_by_layer.range_figure import one_panel, shares_in_words
from ipu_course.lessons.numerics_layer_by_layer.two_sensors import LAYERS

EXPONENTS = tuple(range(0, 33, 4))


def layer_view(values: LayerValues, layer: str, quantity: str, exponent: int) -> View:
    """Show the distribution of a quantity in a layer, and which shares of it half precision loses."""
    tensor = values[layer, quantity]
    power = exponent if is_scaled(quantity) else 0
    shares = range_shares(tensor, power)
    drawn = {"unscaled": 0, f"times 2^{power}": power} if power else {"unscaled": 0}
    largest = float(tensor.abs().max()) * 2.0**power
    row = {
        "layer": layer,
        "quantity": quantity,
        "loss scaling": f"2^{exponent}",
        "become zero": f"{shares.zero:.1%}",
        "lose digits": f"{shares.subnormal:.1%}",
        "overflow": f"{shares.overflow:.2%}",
        "largest": _size(largest),
    }
    return View(
        one_panel(tensor, drawn, f"{layer}: {quantity}"),
        takeaway=_takeaway(quantity, shares.zero, largest),
        description=f"Sizes of the {quantity} of {layer}, with a loss scaling of 2^{exponent}, against the range of "
        f"float16: {shares_in_words(shares)}. The largest is {_size(largest)}.",
        rows=[row],
    )


def _size(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _takeaway(quantity: str, lost: float, largest: float) -> str:
    if not is_scaled(quantity):
        return "Loss scaling multiplies gradients only: weights and activations stay where they are."
    if largest > LARGEST_HALF:
        return "The largest gradients of this layer overflow."
    if lost > 0.99:
        return "All, or nearly all, gradients of this layer become zero."
    if lost >= 0.01:
        return "More than one gradient in a hundred becomes zero."
    return "Hardly any gradient of this layer becomes zero, and none overflows."


LAYER_RANGES = Explorer(
    controls={
        "layer": Choice("layer", {each: each for each in LAYERS}, LAYERS[0]),
        "quantity": Choice("quantity", {each: each for each in QUANTITIES}, ACTIVATION_GRADIENTS),
        "exponent": Slider("loss scaling, as a power of two", EXPONENTS, 0),
    },
    view=layer_view,
)
