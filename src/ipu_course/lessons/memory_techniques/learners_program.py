"""Programs that learners write in lesson 12: a block with checkpoints, and a network with its options."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable

import torch

from ipu_course.lessons.memory_techniques.choices import SLICES_OF_SETS
from ipu_course.lessons.memory_techniques.language_model import (
    BlockForward,
    LanguageModel,
    modelled_training,
    with_recomputation,
)

if TYPE_CHECKING:
    from ipu_course.engine import Profile

MakeProgram = Callable[[], Any]


@lru_cache(maxsize=8)
def recomputed(block: BlockForward) -> Profile:
    """Return the profile of the program that recomputes, with a learner's ``block`` and the product in slices."""
    return modelled_training(lambda: LanguageModel(slices=SLICES_OF_SETS, block=block), with_recomputation()).profile()


@lru_cache(maxsize=8)
def profile_of_program(make_program: MakeProgram) -> Profile:
    """Return the profile of a learner's network and options.

    Raises ``poptorch.Error`` for a program that PopTorch refuses.
    """
    with torch.device("meta"):
        network, options = make_program()
    return modelled_training(lambda: network, options).profile()
