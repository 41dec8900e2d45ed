"""The arithmetic of a call: how many images it takes, and how many micro-batches fill a pipeline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

from ipu_course.errors import SettingsError


def check_accumulation(accumulation: int, stages: int, what: str, instead: str) -> None:
    """Raise ``SettingsError`` when ``accumulation`` micro-batches cannot fill a pipeline of ``stages``.

    ``what`` names the pipeline, and ``instead`` the option that does without one.
    """
    least = least_accumulation(stages)
    if accumulation < least:
        raise SettingsError(
            f"--gradient-accumulation {accumulation} cannot fill the pipeline: training {what} needs at least "
            f"2 x {stages} - 1 = {least} micro-batches per update; use --gradient-accumulation {least} or more, "
            f"or {instead}"
        )


def least_accumulation(stages: int) -> int:
    """Return the smallest gradient accumulation that fills a pipeline of ``stages`` in training."""
    return 2 * stages - 1


@dataclass(frozen=True)
class Factor:
    """One of the options whose product is the number of images in a call, and the least value it may have."""

    option: str
    value: int
    least: int = 1


def check_call(what: str, factors: Sequence[Factor], images: int) -> None:
    """Raise ``SettingsError`` when one call (``what``) takes more images than there are."""
    total = math.prod(factor.value for factor in factors)
    if total > images:
        product = " x ".join(f"{factor.option} {factor.value}" for factor in factors)
        raise SettingsError(
            f"{what} takes {product} = {total} images, but there are {images}; nearest settings that work: "
            + " or ".join(smaller_calls(factors, images))
        )


def smaller_calls(factors: Sequence[Factor], images: int) -> list[str]:
    """Return the largest value of one option that fits a call into ``images``, for each option that can.

    Where none can alone, all take their least value, and the first one, the batch, as much as then fits.
    """
    total = math.prod(factor.value for factor in factors)
    largest = [(factor, images // (total // factor.value)) for factor in reversed(factors)]
    single = [f"{factor.option} {value}" for factor, value in largest if value >= factor.least]
    if single:
        return single
    batch, others = factors[0], factors[1:]
    size = max(1, min(batch.value, images // math.prod(factor.least for factor in others)))
    smallest = [f"{factor.option} {factor.least}" for factor in reversed(others)]
    return [" ".join([*smallest, f"{batch.option} {size}"])]
