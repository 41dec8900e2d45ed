"""What a trained network answers for a scanner's images in some number format, and what that means for people.

An image is sent to manual review when the network is less than 90 % sure of it.
"""

from __future__ import annotations

import copy
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterator

import torch
from torch import Tensor, nn

import poptorch
from ipu_course.exercises import open_parts
from ipu_course.lessons.sharded_debugging.network import BLOCKS

SURE = 0.9
EIGHT_BITS = 255
OVERFLOW_SETTING = "IPU_MODEL_HALF_OVERFLOW"
SAME = 0.02  # of all images: two runs whose review rates differ by less have the same


@dataclass(frozen=True)
class Answers:
    """Shares from 0 to 1: ``right`` and ``reviewed`` of all images, ``undetected`` of all errors."""

    right: float
    reviewed: float
    undetected: float


def scanned(images: Tensor, bits: int) -> Tensor:
    """Return 8-bit ``images`` as a scanner with ``bits`` bits a pixel gives them."""
    bright: Tensor = images * ((2**bits - 1) / EIGHT_BITS)
    return bright


@contextmanager
def overflow_to_infinity(wanted: bool) -> Iterator[None]:
    """Let programs that are compiled meanwhile give infinity where fp16 overflows, as GPUs do."""
    before = os.environ.get(OVERFLOW_SETTING)
    if wanted:
        os.environ[OVERFLOW_SETTING] = "infinity"
    try:
        yield
    finally:
        os.environ.pop(OVERFLOW_SETTING, None)
        if before is not None:
            os.environ[OVERFLOW_SETTING] = before


def answers(network: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype, infinity: bool = False) -> Answers:
    """Return what the network answers on the IPU in ``dtype``; ``infinity`` lets the IPU Model overflow like a GPU."""
    options = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution(*BLOCKS))
    options.showCompilationProgressBar(False)
    with overflow_to_infinity(infinity):
        model = poptorch.inferenceModel(copy.deepcopy(network).eval().to(dtype), options)
        logits = model(images.to(dtype)).float()
    model.destroy()
    sure, digit = logits.softmax(1).max(1)
    wrong = digit != labels
    reviewed = ~(sure >= SURE)  # a NaN is not sure, either
    errors = int(wrong.sum())
    undetected = int((wrong & ~reviewed).sum()) / errors if errors else 0.0
    return Answers(float((~wrong).float().mean()), float(reviewed.float().mean()), undetected)


def show_cure(network: nn.Module, layer: type[nn.Module], images: Tensor, labels: Tensor) -> None:
    """Print what the network answers in fp16 for both scanners with ``layer()`` as its scale, beside fp32."""
    if open_parts("layer", layer):
        print("Write SafeUnitScale first: the network then runs with it in fp16.")
        return
    try:
        cured = copy.deepcopy(network)
        cured.scale = poptorch.BeginBlock(layer(), "B2")
        wanted = answers(network, images, labels, torch.float32)
        for bits in (8, 12):
            found = answers(cured, scanned(images, bits), labels, torch.half)
            print(f"fp16, {bits} bits: review rate {review_words(found, wanted)}")
    except Exception:  # whatever a learner's code raises, the check names it
        print("The network does not run with this layer: the check below says why.")


def review_words(found: Answers, plain: Answers) -> str:
    """Return the review rate beside that of ``plain``, in words that hold on every machine."""
    if found.reviewed > SURE:
        return "nearly all images"
    if found.reviewed < plain.reviewed / 2:
        return "less than half of fp32's"
    return "as in fp32" if abs(found.reviewed - plain.reviewed) < SAME else "not as in fp32"
