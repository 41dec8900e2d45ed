"""The exercises of the first lesson: memory of a tile, and a decision that stays in the graph."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor, nn

import poptorch
from ipu_course.checks import check, number_hint

LESSON = "00"
PARAMETERS, BYTES_EACH, IPUS, TILES = 42.5e6, 10, 2, 1472
RIGHT_KIB = PARAMETERS * BYTES_EACH / (IPUS * TILES) / 1024
NEAR = 0.005  # of the right value: one digit after the point is asked for

# Other ways to calculate, each with the misunderstanding behind it.
_SLIPS = (
    (2.0, "That is for one IPU. The parameters are spread over the tiles of both."),
    (1 / BYTES_EACH, "That counts one byte for each parameter. Training keeps 10."),
    (1024.0, "Those are bytes; one KiB has 1,024 of them."),
    (1.024, "You divided by 1,000: that gives kB. A KiB has 1,024 bytes, and the tile's 624 are KiB."),
    (8.0, "Those are KiB of bits: the 10 are bytes already, nothing is to be multiplied by 8."),
    (IPUS * TILES, "That is the memory in all. Every tile holds its own part of it."),
    (0.2, "That counts the weights alone, 2 bytes each. Gradient and optimiser state are in the 10 bytes."),
)


def check_tile_memory(kib: object) -> None:
    """Exercise 1: KiB that 10 bytes for each of 42.5 million parameters take on each tile of two IPUs."""
    check(
        LESSON,
        "Exercise 1",
        {"kib_on_each_tile": kib},
        lambda: _kib_hint(kib),
        "425 MB over 2,944 tiles: nearly a quarter of each tile, before any activation.",
    )


def check_on_device(double_bright: object) -> None:
    """Exercise 2: a function that doubles the images whose mean is above 0, and can be compiled."""
    check(
        LESSON,
        "Exercise 2",
        {"double_bright": double_bright},
        lambda: _device_hint(double_bright),
        "The comparison stays a tensor, so one graph serves every batch.",
    )


def _kib_hint(value: object) -> str | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    wrong = number_hint("kib_on_each_tile", value)
    if wrong or not isinstance(value, (int, float)):
        return wrong
    if abs(value / RIGHT_KIB - 1) < NEAR:
        return None
    for factor, hint in _SLIPS:
        if abs(value / (RIGHT_KIB * factor) - 1) < NEAR:
            return hint
    return f"{value:,.4g} KiB is not it: all bytes, divided by the number of all tiles, divided by 1,024."


class _Called(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Any:
        return self.function(images)


def _examples() -> tuple[Tensor, ...]:
    """Batches whose images differ from their batch and from their pixels in being bright."""
    random = torch.Generator().manual_seed(3)
    pixels = torch.randn(4, 3, 5, 5, generator=random)
    offsets = torch.tensor([0.9, -0.7, 0.6, -0.5]).view(4, 1, 1, 1)
    return pixels + offsets, pixels - 2 * offsets


def _wanted(images: Tensor) -> Tensor:
    return torch.where(images.mean(dim=(1, 2, 3), keepdim=True) > 0, 2 * images, images)


def _device_hint(function: object) -> str | None:
    if not callable(function):
        return f"double_bright is to be a function of a batch of images; you wrote {function!r}."
    first, second = _examples()
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    try:
        model = poptorch.inferenceModel(_Called(function), options)
        answers = (model(first), model(second))
        model.destroy()
    except poptorch.Error as problem:
        return _refused(str(problem))
    return _answers_hint((first, second), answers)


def _refused(problem: str) -> str:
    if "branches on data" in problem or "reads the value" in problem:
        return (
            "PopTorch refuses it: Python reads a tensor's value, with if, item() or a loop over values. Compare, and "
            "let torch.where choose; nothing is then read before the graph runs."
        )
    return f"PopTorch refuses it: {problem.replace(chr(39) + 'poptorch_py_error' + chr(39) + ': ', '')}"


def _answers_hint(batches: tuple[Tensor, ...], answers: tuple[Any, ...]) -> str | None:
    if any(answer is None for answer in answers):
        return "Your function computes something, but gives nothing back: a return is missing."
    for images, answer in zip(batches, answers):
        if not isinstance(answer, Tensor) or answer.shape != images.shape:
            shape = f"a tensor {list(answer.shape)}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
            return f"The answer to images {list(images.shape)} is {shape}: return all images, doubled or not."
    for mistake, hint in _MISTAKES:
        if all(torch.allclose(mistake(images), answer) for images, answer in zip(batches, answers)):
            return hint
    if all(torch.allclose(_wanted(images), answer, atol=1e-5) for images, answer in zip(batches, answers)):
        return None
    return "It runs, but the answers differ from: twice the image where its mean is above 0, else the image itself."


_MISTAKES: tuple[tuple[Callable[[Tensor], Tensor], str], ...] = (
    (
        lambda x: torch.where(x > 0, 2 * x, x),
        "That decides for each number of an image. The mean of the whole image is to decide.",
    ),
    (
        lambda x: torch.where(x.mean() > 0, 2 * x, x),
        "That decides for the whole batch at once: mean() without dim is one number. Each image has its own mean.",
    ),
    (lambda x: 2 * x, "Every image is doubled; only those with a mean above 0 are to be."),
    (lambda x: x, "No image is doubled: does your function return what it computed?"),
    (
        lambda x: torch.where(x.mean(dim=1, keepdim=True) > 0, 2 * x, x),
        "That takes the mean over the colours of each pixel. An image has three dimensions: 1, 2 and 3.",
    ),
)
