"""Data sets that torchvision reads from its own files, or fetches when it is asked to."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Union

from ipu_course.errors import DataError

PathLike = Union[str, "os.PathLike[str]"]


def from_torchvision(name: str, root: PathLike, train: bool, download: bool, instead: str) -> Any:
    """Return torchvision's data set ``name``, such as "MNIST", whose files are under ``root``.

    Raises ``DataError``, which names what works ``instead``, when it is missing, damaged or not to be had.
    """
    try:
        data_set = getattr(import_module("torchvision.datasets"), name)
    except ImportError as problem:
        raise DataError(
            f"{name} is read with torchvision, which is not installed. Install it, or {instead}."
        ) from problem
    try:
        return data_set(os.fspath(root), train=train, download=download)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError) as problem:
        failed = "downloaded" if download else "read"
        raise DataError(f"{name} could not be {failed} ({problem}). If you can do without it, {instead}.") from problem
