"""Lesson 07's explorer: what brighter and brighter images do to a network in fp32, in fp16 on an IPU and on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ipu_course import engine
from ipu_course.explorers import Explorer, Slider, View
from ipu_course.figures.bars import bars_figure
from ipu_course.lessons.sharded_debugging.scanners import Answers, answers, looked_at_words, scanned

BITS = (8, 9, 10, 11, 12, 13, 14, 15)  # with 16, the pixels themselves do not fit into fp16
FP32, IPU, GPU = "fp32", "fp16, IPU", "fp16, as on a GPU"
MANY, FEW = 0.95, 0.5


def scanner_view(network: nn.Module, images: Tensor, labels: Tensor, bits: int) -> View:
    """Show the answers for a scanner with ``bits`` bits a pixel; the GPU's overflow needs the IPU Model."""
    bright = scanned(images, bits)
    found = {
        FP32: answers(network, bright, labels, torch.float32),
        IPU: answers(network, bright, labels, torch.half),
    }
    if engine.is_available():
        found[GPU] = answers(network, bright, labels, torch.half, infinity=True)
    return View(
        bars_figure(
            ["right answers", "images that a person looks at", "mistakes that nobody sees"],
            {name: [each.right, each.looked_at, each.unseen] for name, each in found.items()},
            "percentage of all images (the last three bars: of all mistakes)",
            f"A scanner with {bits} bits a pixel, up to {2**bits - 1:,}",
            percent=True,
        ),
        takeaway_of(found[IPU], found[FP32]),
        f"A scanner with {bits} bits. " + " ".join(_words(name, each, found[FP32]) for name, each in found.items()),
        [_row(name, each, found[FP32]) for name, each in found.items()],
    )


def takeaway_of(ipu: Answers, plain: Answers) -> str:
    """Return what the figure says about fp16 on an IPU."""
    if ipu.looked_at >= plain.looked_at / 2:
        return "On the IPU, a person still looks at half as many images as in fp32, or more."
    if ipu.right >= MANY:
        return "On the IPU the answers are as good as in fp32, but the network no longer knows when it is wrong."
    return "On the IPU the answers are worse than in fp32, and hardly any of them goes to a person."


def right_words(share: float) -> str:
    """Return how many answers are right, in words that hold on every machine."""
    if share >= MANY:
        return "at least 95 %"
    return "fewer than half" if share < FEW else "between 50 and 95 %"


def unseen_words(share: float) -> str:
    """Return how many of the mistakes nobody sees, in words that hold on every machine."""
    return "few or none" if share < 0.25 else "some" if share < 0.75 else "most"


def _words(name: str, found: Answers, plain: Answers) -> str:
    return (
        f"{name}: {right_words(found.right)} of the answers right; a person looks at {_looked_at(found, plain)}; "
        f"mistakes that nobody sees: {unseen_words(found.unseen)}."
    )


def _row(name: str, found: Answers, plain: Answers) -> dict[str, object]:
    return {
        "number format": name,
        "right answers": right_words(found.right),
        "a person looks at": _looked_at(found, plain),
        "mistakes that nobody sees": unseen_words(found.unseen),
    }


def _looked_at(found: Answers, plain: Answers) -> str:
    # Rounded: a trained network does not answer every single image the same on every machine.
    if found is plain:
        return f"about {10 * round(10 * found.looked_at)} % of the images"
    return looked_at_words(found, plain)


SCANNER = Explorer(controls={"bits": Slider("bits a pixel", BITS, 12)}, view=scanner_view)
