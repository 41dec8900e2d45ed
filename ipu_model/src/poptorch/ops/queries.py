"""Questions a program asks about where it runs."""

from __future__ import annotations

from ipu_model import tracing


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
