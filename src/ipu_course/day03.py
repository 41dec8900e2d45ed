"""The hands-on that lessons 01 to 05 climb: its data's shapes, its host, its published steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ipu_course import engine
from ipu_course.programs.train.host import hands_on_host
from ipu_course.programs.train.model import ClassifierWithLoss, NormaliseOnDevice
from ipu_course.programs.train.published import PublishedStep, published_ladder
from ipu_course.programs.train.settings import Settings

if TYPE_CHECKING:
    from ipu_course.engine import HostWork, Profile

__all__ = ["ClassifierWithLoss", "NormaliseOnDevice", "epoch_seconds", "host", "micro_batch", "published"]

BATCH_SIZE, SIDE = 64, 64


def micro_batch(dtype: torch.dtype, size: int = BATCH_SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [size, 3, 64, 64] of ``dtype`` and labels [size], all zeros: a profile asks for shapes only."""
    return torch.zeros(size, 3, SIDE, SIDE, dtype=dtype), torch.zeros(size, dtype=torch.int64)


def host(eight_bit_io: bool = False, asynchronous: bool = False, workers: int = 0) -> HostWork | None:
    """What the hands-on's program costs its host, fitted on its published epochs; ``None`` without an IPU Model."""
    return hands_on_host(Settings(eight_bit_io=eight_bit_io, async_dataloader=asynchronous, num_workers=workers))


def epoch_seconds(profile: Profile | None) -> float | None:
    """Modelled seconds of an epoch over CIFAR-10's 50,000 training images, incomplete calls left out.

    ``None`` without a profile, and where the program does not fit.
    """
    if profile is None or not engine.may_run(profile):
        return None
    calls = published_ladder().training_images // profile.samples_per_call
    return calls * profile.call_seconds


def published(step: str) -> PublishedStep:
    """The published result of one step of the hands-on. Raises ``ValueError`` for steps it does not have."""
    steps = {each.name: each for each in published_ladder().steps}
    if step not in steps:
        raise ValueError(f"the hands-on has no step {step!r}; it has {', '.join(map(repr, steps))}")
    return steps[step]
