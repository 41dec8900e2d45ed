"""The check of a hunt for layers that stand still, and of the types that a learner gives to a network's parameters."""

from __future__ import annotations

from typing import Any

import torch

from ipu_course.exercises import Points
from ipu_course.lessons.numerics_layer_by_layer.two_sensors import LAYERS, SensorTraining, TwoSensors, train

LEARNS, VANISHES, TOO_SMALL, OVERFLOWS = (
    "learns",
    "gradients become zero",
    "updates are lost",
    "activations overflow",
)
CAUSES = (LEARNS, VANISHES, TOO_SMALL, OVERFLOWS)
FOUND = {"upper": VANISHES, "lower": TOO_SMALL, "mix": LEARNS, "head": LEARNS}
NEAR = 1.5  # percentage points
MENDING_SCALE = 2.0**20


def mending_hint(causes: Any, mend: Any, using: SensorTraining) -> str | None:
    """Return a hint for the causes by layer, and for the network that ``mend`` returns.

    ``using`` is the training in float32.
    """
    return _causes_hint(causes) or _mend_hint(mend, using)


def _causes_hint(causes: Any) -> str | None:
    if not isinstance(causes, dict):
        return 'causes is a dictionary, such as {"upper": "learns", ...}.'
    for layer in LAYERS:
        if layer not in causes:
            return f"{layer} has no cause yet."
        named = str(causes[layer]).strip().lower()
        if named not in CAUSES:
            return f"{causes[layer]!r} is none of: {', '.join(CAUSES)}."
        if named != FOUND[layer]:
            return f"{layer}: {_cause_hint(layer, named)}"
    return None


def _cause_hint(layer: str, named: str) -> str:
    if named == OVERFLOWS:
        return "no activation of this layer is beyond 65,504. Look at the second column of the distributions."
    if FOUND[layer] == LEARNS:
        return "the figure shows that its weights move as far as in fp32."
    if named == LEARNS:
        return "compare the bars of this layer in the figure of movement. Does it go as far as in fp32?"
    if FOUND[layer] == TOO_SMALL:
        return (
            "most of its gradients arrive, and loss scaling did not help it. Compare the last two columns of the table."
        )
    return "loss scaling helped it, and scaling does not change the size of AdamW's updates. What else did it change?"


def _mend_hint(mend: Any, reference: SensorTraining) -> str | None:
    if not callable(mend):
        return "mend should be a function of the network."
    network = mend(TwoSensors())
    if not isinstance(network, TwoSensors):
        return f"mend returned {network!r}. Return the network."
    types = {layer: network.get_parameter(f"{layer}.weight").dtype for layer in LAYERS}
    for layer, dtype in types.items():
        if dtype not in (torch.float16, torch.float32):
            name = str(dtype).partition(".")[2]
            return f"The weights of {layer!r} are {name} now. An IPU has no {name}: keep weights in fp16 or fp32."
    wide = [layer for layer, dtype in types.items() if dtype is torch.float32]
    if len(wide) == len(LAYERS):
        return "All weights are still fp32. Call half() first, and then give the layer that needs it its fp32 back."
    if not wide:
        return (
            "All weights are fp16 now. Which layer has weights so large that its updates are lost? And does it get its "
            "fp32 back last? layer.float() changes the layer, but tensor.float() only returns a new tensor."
        )
    if "lower" not in wide:
        return f"You keep {wide[0]!r} in fp32. Its updates are larger than half an ulp, so it does not need that."
    if len(wide) > 1:
        others = " and ".join(repr(layer) for layer in wide if layer != "lower")
        return f"You keep {others} in fp32, too. With loss scaling, fp16 is enough there: save those bytes."
    changed = _changed_layer(network)
    if changed is not None:
        return f"The types are right, but {changed!r} has other values now. Cast the weights that you are given."
    found = train(network, torch.half, loss_scaling=MENDING_SCALE)
    if found.accuracy < reference.accuracy - NEAR:
        return f"The types are right, but the network gets {found.accuracy:.0f} % right. Is it still the same network?"
    return None


def _changed_layer(network: TwoSensors) -> str | None:
    """Return a layer whose parameters are not those of a new network, however they were rounded to float16."""
    for name, first in TwoSensors().named_parameters():
        if not torch.allclose(network.get_parameter(name).float(), first, rtol=2.0**-10, atol=2.0**-24):
            return name.partition(".")[0]
    return None


def mending_points(causes: Any, mend: Any, using: SensorTraining) -> Points:
    """Return the KiB of the mended network's parameters."""
    size = sum(each.numel() * each.element_size() for each in mend(TwoSensors()).parameters())
    return Points(size / 1024, "KiB of weights", "lower")


def mended() -> TwoSensors:
    """Return the network in float16, with the weights of ``lower`` in float32."""
    network = TwoSensors().half()
    network.lower.float()
    return network
