"""Exercise 2: a layer that scales bright images in fp16 without an overflow."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

import poptorch
from ipu_course.lessons.sharded_debugging.network import UnitScale

BRIGHT = 4095 / 255
NEAR = 0.02  # of the largest value


def features() -> Tensor:
    """Return what ``layer1`` may give for a dark, a bright and a blank image: [3, 10, 12, 12] float32."""
    draw = torch.Generator().manual_seed(7)
    dark, bright = 100 * torch.rand(2, 10, 12, 12, generator=draw)
    return torch.stack((dark, BRIGHT * bright, torch.zeros_like(dark)))


def scale_hint(layer: object) -> str | None:
    """Return what is wrong with a layer class that is to scale fp16 images without an overflow, or ``None``."""
    if not (inspect.isclass(layer) and issubclass(layer, nn.Module)):
        return f"SafeUnitScale has to be a class that inherits from nn.Module; you wrote {layer!r}."
    x = features()
    try:
        together, alone = _run(layer(), x.half()), _run(layer(), x[:1].half())
        wide = _run(layer(), x)
    except poptorch.Error as problem:
        return f"PopTorch refuses this layer: {problem}"
    if not (isinstance(together, Tensor) and together.shape == x.shape):
        return "forward(x) has to return one tensor of the same shape as x."
    if together.dtype != torch.half:
        return (
            f"For a float16 image your layer returns {str(together.dtype).partition('.')[2]}, but the next layer's "
            "weights are float16. Convert the result to x.dtype."
        )
    wanted = UnitScale()(x)
    if not _near(together[:1], alone):
        return (
            "An image comes out differently when it is alone than in its batch. Take the mean over the dimensions 1, 2 "
            "and 3, not over the batch."
        )
    if not _near(together[0], wanted[0]):
        return (
            "Even the first scanner's image is not what UnitScale makes of it: x times one over the root of (its "
            "power + 0.001)."
        )
    if not _near(together[1], wanted[1]):
        return (
            "The first scanner's image is right, the second one's is not: a number still leaves the range of fp16. "
            "Everything between x and the root has to be computed in float32, the multiplication first of all."
        )
    if not _near(together[2], wanted[2]):
        return (
            "Both scanners' images are right, but a blank image, all zeros behind a ReLU, does not stay zero: 0 / 0 is "
            "NaN, for example. UnitScale adds 0.001 before it divides."
        )
    if wide.dtype != torch.float32 or not _near(wide, wanted):
        return "It works in fp16, but the network is trained in fp32: for a float32 image, return float32, too."
    return None


def _run(layer: nn.Module, x: Tensor) -> Any:
    """Return whatever the layer returns for ``x`` on the IPU."""
    options = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.inferenceModel(layer.eval(), options)
    try:
        return model(x)
    finally:
        model.destroy()


def _near(found: Tensor, wanted: Tensor) -> bool:
    # A comparison with NaN is never true.
    return bool((found.float() - wanted.float()).abs().max() <= NEAR * wanted.float().abs().max())
