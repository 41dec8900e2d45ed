"""The checks of two code exercises: finding the layers that leave the range of float16, and repairing them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import poptorch
from ipu_course.datasets import mnist
from ipu_course.lessons.half_precision.camera import CameraDigits, LogOfOnePlus, Square
from ipu_course.lessons.half_precision.trial import try_out
from ipu_course.models import Digits

LARGEST_HALF = 65504.0
LEARNED = 85.0  # per cent of the test digits
TOLERANCE = 0.02


class Scale(nn.Module):
    """Each value times a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Case(NamedTuple):
    """A model in float32, its images, and the names of its layers whose outputs are out of range."""

    model: nn.Module
    images: Tensor
    wanted: frozenset[str]
    otherwise: str


def layers_hint(layers_out_of_range: Any) -> str | None:
    """Return a hint unless the function names exactly the layers that leave the range, for three models."""
    if not callable(layers_out_of_range):
        return "layers_out_of_range should be a function of a model and its images."
    for case in _cases():
        before = copy.deepcopy(case.model.state_dict())
        found = layers_out_of_range(case.model, case.images)
        hint = _kind_hint(found) or _left_hint(case.model, before) or _names_hint(set(found), case)
        if hint is not None:
            return hint
    return None


def _cases() -> tuple[Case, ...]:
    images = mnist(train=False).images[:32]
    ones = torch.ones(2, 4)
    block = nn.Sequential(nn.Sequential(Scale(300.0), Square()), Scale(0.001))
    return (
        Case(CameraDigits(), images, frozenset({"energy", "pool"}), "In the camera's network"),
        Case(Digits(), images, frozenset(), "In the digits network, which trains well in fp16,"),
        Case(block, ones, frozenset({"0.1"}), "In a network with a block inside"),
        Case(nn.Sequential(Scale(-70_000.0), nn.ReLU()), ones, frozenset({"0"}), "In a network with negative outputs"),
    )


def _kind_hint(found: Any) -> str | None:
    if found is None:
        return "layers_out_of_range returns nothing. Return the names that you have collected."
    if isinstance(found, str) or not isinstance(found, Iterable) or any(not isinstance(name, str) for name in found):
        return "Return a list of names, as model.named_modules() gives them: text, not layers and not one string."
    return None


def _left_hint(model: nn.Module, before: dict[str, Tensor]) -> str | None:
    if any(layer._forward_hooks for layer in model.modules()):
        return "Your hooks stay in the model and would run in every later call: call remove() on each handle."
    after = model.state_dict()
    if any(after[name].dtype != value.dtype or not torch.equal(after[name], value) for name, value in before.items()):
        return "Your function changed the model. Look at it in fp32, and do not call half() on it."
    return None


def _names_hint(found: set[str], case: Case) -> str | None:
    if found == case.wanted:
        return None
    named = dict(case.model.named_modules())
    extra, missing = sorted(found - case.wanted), sorted(case.wanted - found)
    containers = [name for name in extra if name in named and list(named[name].children())]
    if containers:
        container = containers[0] or "the whole model"
        return f"You name {container!r}, which is a container: only layers without children count."
    if extra:
        hint = f"{case.otherwise} you name {extra[0]!r}, whose outputs are all within 65,504."
        if found == {list(named)[-1]}:
            return f"{hint} (That is the last layer: does each hook still see its own name when it runs?)"
        return hint
    if "negative" in case.otherwise:
        return f"{case.otherwise} you miss {missing[0]!r}: -70,000 is out of range, too. Compare absolute values."
    return f"{case.otherwise} you miss {missing[0]!r}, whose largest output exceeds 65,504."


def repair_hint(in_float32: Any) -> str | None:
    """Return a hint unless the wrapper computes in float32, returns float16, and lets the camera's network learn."""
    if not (isinstance(in_float32, type) and issubclass(in_float32, nn.Module)):
        return "InFloat32 should be a class that derives from nn.Module and takes the layers to wrap."
    for size in (1.0, 3000.0):
        x = (torch.linspace(-1.0, 1.0, 36).view(1, 1, 6, 6) * size).half()
        hint = _outputs_hint(_on_device(in_float32(Square(), nn.AvgPool2d(2), LogOfOnePlus()), x), x, size)
        if hint is not None:
            return hint
    return _training_hint(in_float32)


def _on_device(network: nn.Module, x: Tensor) -> Any:
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    model = poptorch.inferenceModel(network.half().eval(), options)
    result = model(x)
    model.destroy()
    return result


def _outputs_hint(result: Any, x: Tensor, size: float) -> str | None:
    wanted = nn.functional.avg_pool2d(x.double().pow(2), 2).add(1).log()
    if not isinstance(result, Tensor) or result.shape != wanted.shape:
        return "forward should return what the wrapped layers return, with their shape."
    if result.dtype is not torch.float16:
        return "The result is float32, so every later layer would compute in it. Convert back with half() at the end."
    if torch.allclose(result.double(), wanted, rtol=TOLERANCE, atol=TOLERANCE):
        return None
    if size == 1.0:
        return "Small values already come out wrong: run all the wrapped layers, once, in their order."
    return "Values around 3,000 come out too small: their squares are still clipped. Convert before the first layer."


def _training_hint(in_float32: Any) -> str | None:
    options = poptorch.Options().deviceIterations(5).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(2)
    options.showCompilationProgressBar(False)
    network = CameraDigits(in_float32).half()
    optimiser = poptorch.optim.AdamW(network.parameters(), lr=0.004)
    trial = try_out(poptorch.trainingModel(network, options, optimiser), network, torch.float16, 5 * 2 * 40)
    if trial.accuracy > LEARNED:
        return None
    return (
        f"The outputs are right, but the camera's network still does not learn: {trial.accuracy:.0f} % after training."
    )
