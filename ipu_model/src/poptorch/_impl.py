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


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return whether a physical device of `num_ipus` IPUs exists: never, this is the IPU Model."""
    return False


def ipuHardwareVersion() -> int:
    """Return the version of the hardware.

    Raises:
        AssertionError: always, as there is none.
    """
    raise AssertionError(
        "No IPU hardware available: this program runs on the IPU Model. Ask poptorch.ipuHardwareIsAvailable() first."
    )
