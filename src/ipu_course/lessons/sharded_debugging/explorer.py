"""Lesson 07's explorer: what brighter and brighter images do to a network in fp32, in fp16 on an IPU and on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ipu_course import engine
from ipu_course.explorers import Explorer, Slider, View
from ipu_course.lessons.sharded_debugging.scanner_figure import scanner_figure
from ipu_course.lessons.sharded_debugging.scanners import Answers, answers, review_words, scanned

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
        scanner_figure(found, f"A scanner with {bits} bits per pixel, values up to {2**bits - 1:,}"),
        takeaway_of(found[IPU], found[FP32]),
        f"A scanner with {bits} bits. " + " ".join(_words(name, each, found[FP32]) for name, each in found.items()),
        [_row(name, each, found[FP32]) for name, each in found.items()],
    )


def takeaway_of(ipu: Answers, plain: Answers) -> str:
    """Return what the figure says about fp16 on an IPU."""
    if ipu.reviewed >= plain.reviewed / 2:
        return "On the IPU, the review rate is still at least half of fp32's."
    if ipu.right >= MANY:
        return "On the IPU the accuracy is as good as in fp32, but the network no longer knows when it is wrong."
    return "On the IPU the accuracy is worse than in fp32, and hardly any image is reviewed."


def right_words(share: float) -> str:
    """Return the accuracy, in words that hold on every machine."""
    if share >= MANY:
        return "at least 95 %"
    return "below 50 %" if share < FEW else "between 50 and 95 %"


def undetected_words(share: float) -> str:
    """Return how many of the errors no review detects, in words that hold on every machine."""
    return "few or none" if share < 0.25 else "some" if share < 0.75 else "most"


def _words(name: str, found: Answers, plain: Answers) -> str:
    return (
        f"{name}: accuracy {right_words(found.right)}; review rate {_review(found, plain)}; "
        f"undetected errors: {undetected_words(found.undetected)}."
    )


def _row(name: str, found: Answers, plain: Answers) -> dict[str, object]:
    return {
        "number format": name,
        "accuracy": right_words(found.right),
        "review rate": _review(found, plain),
        "undetected errors": undetected_words(found.undetected),
    }


def _review(found: Answers, plain: Answers) -> str:
    # Rounded: a trained network does not answer every single image the same on every machine.
    if found is plain:
        return f"about {10 * round(10 * found.reviewed)} % of the images"
    return review_words(found, plain)


SCANNER = Explorer(controls={"bits": Slider("bits per pixel", BITS, 12)}, view=scanner_view)
