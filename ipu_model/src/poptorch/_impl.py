"""PopTorch's own errors, and questions that a program asks about where it runs."""

from __future__ import annotations

import os

from ipu_model import tracing
from ipu_model.errors import Error

# Libraries that have registered memory with a network card must survive a fork, of loader processes say.
os.environ.setdefault("RDMAV_FORK_SAFE", "1")


def createPoptorchError(msg: str) -> Error:
    """Return, not raise, a `poptorch.Error` of type `poptorch_py_error` with this message."""
    return Error(msg, type="poptorch_py_error", location="")


def isRunningOnIpu() -> bool:
    """Return whether a wrapped model's `forward` is being traced for the device right now."""
    return tracing.is_tracing()
