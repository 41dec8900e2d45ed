"""The activation of lesson 12 as one custom operation, and a training that compares it with PyTorch's own ops."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

import poptorch
from ipu_course import engine, show
from ipu_course.exercises import open_parts
from ipu_course.lessons.memory_techniques.language_model import (
    GELU_SLOPE,
    SMALL,
    Activation,
    LanguageModel,
    captured_with,
    quick_gelu,
)

if TYPE_CHECKING:
    from ipu_course.engine import Profile

DOMAIN, VERSION = "course.ops", 1
COURSES_NAME = "CoursesQuickGelu"
STEPS, SAMPLES = 30, 8
KIB = 1024

Gradient = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Mapping[str, Any]], Any]


def quick_gelu_gradient(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], gradients: Sequence[Tensor], attributes: Mapping[str, Any]
) -> list[Tensor]:
    """Return the gradient of the activation's input, from that of its output; the sigmoid is computed again."""
    (x,) = inputs
    share = torch.sigmoid(GELU_SLOPE * x)
    return [gradients[0] * share * (1 + GELU_SLOPE * x * (1 - share))]


def register_activation(name: str, gradient: Gradient) -> None:
    """Register the activation with its ``gradient`` as a custom operation, for the IPU Model.

    As long as the learner's gradient is open, the course's takes its place.
    """
    own = quick_gelu_gradient if open_parts("gradient", gradient) else gradient
    engine.register_custom_op(name, DOMAIN, VERSION, quick_gelu, own)


@lru_cache(maxsize=1)
def courses_activation() -> Activation:
    """Register the course's own custom operation, and return it as an activation of a network."""
    register_activation(COURSES_NAME, quick_gelu_gradient)
    return lambda x: poptorch.custom_op([x], COURSES_NAME, DOMAIN, VERSION, example_outputs=[x])[0]


def show_own_activation(activation: Activation) -> None:
    """Train a small model with both activations, and show what the operation saves in the lesson's program."""
    if not engine.is_available():
        print(engine.NOT_HERE)
        return
    plain, own = train_both(activation)
    print(
        "losses with PyTorch's ops and with the operation agree:",
        torch.allclose(torch.tensor(plain), torch.tensor(own), rtol=1e-3),
    )
    print("the loss falls to less than half:", own[-1] < own[0] / 2)
    rows: list[dict[str, object]] = []
    for name, used in (("PyTorch's ops", quick_gelu), ("one operation", activation)):
        profile = with_activation(used)
        rows.append({"activation (modelled)": name, "fullest tile": f"{profile.memory.max_tile_bytes / KIB:.0f} KiB",
                     "samples/s": f"{profile.samples_per_second:,.0f}"})  # fmt: skip
    show.table(rows, index="activation (modelled)")


@engine.needs_the_model
def train_both(activation: Activation) -> tuple[list[float], list[float]]:
    """Train a small language model with PyTorch's ops and with ``activation``, and return the losses of both.

    The small model learns that each word is followed by the next one.
    """
    return _losses(quick_gelu), _losses(activation)


def _losses(activation: Activation) -> list[float]:
    torch.manual_seed(1)
    network = LanguageModel(SMALL, activation=activation)
    with torch.no_grad():
        for each in network.modules():
            if isinstance(each, nn.Embedding):
                each.weight.mul_(0.1)
    model = poptorch.trainingModel(
        network,
        poptorch.Options().showCompilationProgressBar(False),
        poptorch.optim.AdamW(network.parameters(), lr=0.01),
    )
    found = []
    for _ in range(STEPS):
        words = torch.randint(SMALL.words, (SAMPLES, 1)) + torch.arange(SMALL.length)
        words = words % SMALL.words
        found.append(float(model(words.int(), (words + 1) % SMALL.words)))
    model.detachFromDevice()
    return found


@engine.needs_the_model
def with_activation(activation: Activation) -> Profile:
    """Return the profile of the lesson's program with another activation."""
    return captured_with(0, activation).profile()
