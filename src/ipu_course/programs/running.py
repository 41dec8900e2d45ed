"""What the programs do alike with PyTorch and PopTorch: precision, stages, loaders, and refusals in one line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterable, Iterator

import torch
from torch import nn
from torch.utils.data import Dataset

import poptorch
from ipu_course.errors import CourseError

DTYPES = {"16": torch.float16, "32": torch.float32}


def dtypes(precision: str) -> tuple[torch.dtype, torch.dtype]:
    """Return the types of the computation's inputs and of the weights: "16.32" means float16 and float32."""
    inputs, weights = precision.split(".")
    return DTYPES[inputs], DTYPES[weights]


def begin_stages(model: nn.Module, layers: Iterable[str]) -> None:
    """Let each of these layers, in this order, begin on the next IPU."""
    for ipu, name in enumerate(layers, start=1):
        parent, _, own_name = name.rpartition(".")
        setattr(model.get_submodule(parent), own_name, poptorch.BeginBlock(model.get_submodule(name), ipu_id=ipu))


@contextmanager
def loading(
    options: poptorch.Options,
    images: Dataset[Any],
    batch_size: int,
    asynchronous: bool,
    **arguments: Any,
) -> Iterator[poptorch.DataLoader]:
    """Yield a loader of whole calls, whose processes end with the block; ``arguments`` are PyTorch's loader's."""
    mode = poptorch.DataLoaderMode.Async if asynchronous else poptorch.DataLoaderMode.Sync
    loader = poptorch.DataLoader(options, images, batch_size=batch_size, drop_last=True, mode=mode, **arguments)
    try:
        yield loader
    finally:
        loader.terminate()


@contextmanager
def refusals_in_a_line(debug: bool, out_of_memory: str = "") -> Iterator[None]:
    """Turn what PopTorch refuses into a ``CourseError``, with advice for a program that runs ``out_of_memory``.

    With ``debug`` PopTorch logs in detail, and its errors stay as they are.
    """
    if debug:
        poptorch.setLogLevel("DEBUG")
    try:
        yield
    except (poptorch.Error, AssertionError) as problem:  # PopTorch raises both
        if debug or not str(problem):
            raise
        advice = out_of_memory if "out of memory" in str(problem) else ""
        raise CourseError(f"{problem}{advice} (--debug shows where)") from problem
