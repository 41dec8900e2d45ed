"""Answer queries for IPU hardware: there is none, unless the user wants the IPU Model to be treated as hardware."""

from __future__ import annotations

import os
import sys
from functools import cache

from ipu_model.errors import Error

VARIABLE = "IPU_MODEL_AS_HARDWARE"
_SIMULATORS = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return whether a physical device of `num_ipus` IPUs exists: False, because this is the IPU Model.

    With `IPU_MODEL_AS_HARDWARE=1` in the environment, return whether the modelled system has that many IPUs.

    Raises:
        Error: `IPU_MODEL_MACHINE` names a machine that does not exist.
    """
    if not _passes_for_hardware():
        return False
    # Imported when it is needed, so that `import poptorch` stays quick.
    from poptorch._backend.modelling import modelled_system

    modelled_system(1)
    try:
        modelled_system(num_ipus)
    except Error:  # more IPUs than it has
        return False
    return True


def ipuHardwareVersion() -> int:
    """Return the hardware's version; with `IPU_MODEL_AS_HARDWARE=1`, that of the modelled system's chips.

    Raises:
        AssertionError: the variable is not set, so there is no hardware.
    """
    assert _passes_for_hardware(), (
        "No IPU hardware available: this program runs on the IPU Model. Call poptorch.ipuHardwareIsAvailable() first, "
        f"or set {VARIABLE}=1 for programs that insist on hardware."
    )
    from poptorch._backend.modelling import modelled_system, version_of

    return version_of(modelled_system(1).chip)


def _passes_for_hardware() -> bool:
    """Return whether the user asked for hardware; as in PopTorch, an enabled simulator hides it."""
    if not _is_on(VARIABLE) or any(map(_is_on, _SIMULATORS)):
        return False
    _print_notice()
    return True


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").strip() not in ("", "0")


@cache
def _print_notice() -> None:
    """Print the notice on stderr, once in each process."""
    print(
        f"{VARIABLE} is set: this is the IPU Model, which reports IPU hardware although there is none.",
        file=sys.stderr,
    )
