"""The exercises of lesson 16: ranges, loss scaling, layers that stand still, stochastic rounding, unit tests."""

from __future__ import annotations

from typing import Any

from ipu_course.exercises import Exercise, Number
from ipu_course.lessons.numerics_layer_by_layer.float64_check import float64_hint
from ipu_course.lessons.numerics_layer_by_layer.mending_check import mending_hint, mending_points
from ipu_course.lessons.numerics_layer_by_layer.rounding_check import rounding_hint
from ipu_course.lessons.numerics_layer_by_layer.scaling_check import scaling_hint
from ipu_course.lessons.numerics_layer_by_layer.two_sensors import LAYERS

SMALLEST = Number(
    "smallest",
    12,
    wrong={
        8: "At 2^8, 3 % of upper's activation gradients still become zero.",
        4: "At 2^4, more than a third of upper's activation gradients still become zero.",
        0: "Without scaling, all of upper's activation gradients become zero.",
        16: "At 2^16 the share is far below 1 %. Is a smaller exponent enough, too?",
        20: "At 2^20 the share is far below 1 %. Is a smaller exponent enough, too?",
        24: "2^24 is more than it takes. The question is about those that become zero, not those that lose digits.",
        28: "2^28 is more than it takes. The question is about those that become zero, not those that lose digits.",
        4096: "2^12 is the scaling. The question is about the exponent.",
    },
    otherwise="Show the activation gradients of upper, and move the slider until less than 1 % become zero.",
)
LARGEST = Number(
    "largest",
    24,
    wrong={
        28: "At 2^28, some gradients of other layers are already beyond 65,504.",
        32: "At 2^32, some gradients of other layers are already beyond 65,504.",
        20: "At 2^20, no gradient of any layer overflows, but that is also true one step further.",
        2**24: "2^24 is the scaling. The question is about the exponent.",
    },
    otherwise="Look at both kinds of gradients of all four layers, and find the first that overflows.",
)


def window_hint(smallest: Any, largest: Any, first: Any) -> str | None:
    """Return the hint for the ends of the window of loss scalings, and for the layer that overflows first."""
    hint = SMALLEST.hint(smallest) or LARGEST.hint(largest)
    if hint is not None:
        return hint
    named = str(first).strip().lower()
    if named not in LAYERS:
        return f"first is the name of a layer: {', '.join(LAYERS)}; you wrote {first!r}."
    if named != "lower":
        return f"{named} does not have the largest gradient. Compare the column 'largest' of all layers, in both kinds."
    return None


WINDOW_BY_LAYER = Exercise(
    names=("smallest", "largest", "first"),
    find_hint=window_hint,
    praise="One number has to serve all layers, and two neighbours, upper and lower, set its two ends.",
)

CHOOSE = Exercise(
    names=("choose_scaling",),
    find_hint=scaling_hint,
    praise="It holds for outliers, for exact limits, and for gradients that have to shrink.",
)

MEND = Exercise(
    names=("causes", "mend"),
    find_hint=mending_hint,
    praise="Trained with loss scaling, your network is as good as in fp32.",
    score=mending_points,
)

ROUND = Exercise(
    names=("round_stochastically",),
    find_hint=rounding_hint,
    praise="Neighbours only, and the mean of 20,000 copies is right everywhere, even below 2^-14.",
)

UNIT_TEST = Exercise(
    names=("check_layer",),
    find_hint=float64_hint,
    praise="It passes every right layer and catches every planted fault, NaN among them.",
)
