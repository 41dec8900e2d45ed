"""Names that programs reach through PopTorch's native module: error classes, errors on demand and a few queries.

The rest of that module drives Graphcore's compiler; it is refused by name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import IntEnum
from functools import cache, partial
from typing import Any, NoReturn

from ipu_model.capture.tracing import is_tracing as isCompilingWithDispatcher
from ipu_model.errors import Error, OutOfMemory, RecoverableError, UnrecoverableError, require
from poptorch import _logging
from poptorch._backend.compile import Compiled
from poptorch._impl import refusal
from poptorch._logging import setPopartLogLevel
from poptorch._utils import getIpuTensorId
from poptorch.options.backend import validate_options as _validateOptions

__all__ = [
    "Error", "RecoverableError", "TestErrorType", "UnrecoverableError", "_throwTestError", "_validateOptions",
    "getIpuTensorId", "getRandomSeed", "getRngState", "ipuHardwareIsAvailable", "ipuHardwareVersion",
    "isAttachedToDevice", "isCompilingWithDispatcher", "poptorchAtExit", "setLogLevel", "setPopartLogLevel",
]  # fmt: skip


# PopTorch defines them here, and tracebacks name this module.
for _error in (Error, RecoverableError, UnrecoverableError):
    _error.__module__ = __name__
# The original has no class of its own for programs that do not fit.
OutOfMemory.__module__, OutOfMemory.__qualname__ = __name__, Error.__qualname__


# Where PopTorch's own function raises them: the numbered context of a backend error.
_LOCATION = "  [0] throwTestError::bottomLevel\n  [1] throwTestError::topLevel"


_Reset = partial(RecoverableError, recovery_action="FULL_RESET")
# The kinds of errors that `_throwTestError` raises: what makes each, with its `type` and message.
_KINDS: dict[str, tuple[Callable[..., Error], str, str]] = {
    "Poptorch": (Error, "poptorch_cpp_error", "This is a PopTorch error"),
    "Popart": (Error, "popart_exception", "This is a PopART error"),
    "PopartInternal": (Error, "popart_internal_exception", "This is an internal PopART error"),
    "Poplibs": (Error, "poplibs_exception", "This is a PopLibs error"),
    "PoplarUnrecoverable": (UnrecoverableError, "poplar_unrecoverable_runtime_error", "This is not recoverable"),
    "PoplarUnknown": (Error, "poplar_unknown_runtime_error", "Don't know what happened"),
    "PoplarRecoverableFullReset": (_Reset, "poplar_recoverable_runtime_error", "Reboot needed"),
    "PoplarLinkError": (Error, "poplar_link_error", "Link error: -lfoo not found"),
}
_enumeration: Any = IntEnum
TestErrorType = _enumeration("TestErrorType", list(_KINDS), start=0, module=__name__)
TestErrorType.__test__ = False  # pytest collects classes by their names


def _throwTestError(kind: Any) -> NoReturn:
    """Raise an error of this kind: `RecoverableError`, `UnrecoverableError` or else `Error`."""
    made, name, message = _KINDS[TestErrorType(kind).name]
    raise made(message, type=name, location=_LOCATION)


_AS_HARDWARE = "IPU_MODEL_AS_HARDWARE"


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return whether a physical device of `num_ipus` IPUs exists: False, because this is the IPU Model.

    With `IPU_MODEL_AS_HARDWARE=1` in the environment, return whether the modelled system has that many IPUs.
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
    """Return the version of the modelled system's chips; raise `AssertionError` without `IPU_MODEL_AS_HARDWARE=1`."""
    require(
        _passes_for_hardware(),
        "No IPU hardware available: this program runs on the IPU Model. Call poptorch.ipuHardwareIsAvailable() first, "
        f"or set {_AS_HARDWARE}=1 for programs that insist on hardware.",
    )
    from poptorch._backend.modelling import modelled_system, version_of

    return version_of(modelled_system(1).chip)


def _passes_for_hardware() -> bool:
    """Return whether the user asked for hardware; as in PopTorch, an enabled simulator hides it."""
    if not _is_on(_AS_HARDWARE) or _is_on("POPTORCH_IPU_MODEL") or _is_on("POPTORCH_SMALL_IPU_MODEL"):
        return False
    _print_notice()
    return True


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").strip() not in ("", "0")


@cache
def _print_notice() -> None:
    print(
        f"{_AS_HARDWARE} is set: this is the IPU Model, which reports IPU hardware although there is none.",
        file=sys.stderr,
    )


def isAttachedToDevice(executable: Compiled) -> bool:
    return executable.attached


def getRandomSeed(executable: Compiled) -> int:
    return executable.session.randomness.seed


def getRngState(executable: Compiled) -> list[int]:
    return executable.session.randomness.state()


def setLogLevel(level: int) -> None:
    """Set the log level of compilation, by its number; the level of the Python part does not change."""
    before = _logging.logger.level
    _logging.setLogLevel(level)
    _logging.logger.setLevel(before)


def poptorchAtExit() -> None:
    """Do nothing: there is no device to release when the program ends."""


# Other names that PopTorch's own Python uses here: steps of Graphcore's compiler and of the transfer to hardware.
_REFUSED = (
    "CompilerOptions TracingMode _getPopartIR _getTensorNames appendPoptorchMetadataToFile attachToDevice "
    "compileWithManualTracing copyNamedBuffersToDevice_impl copyWeightsToDevice_impl copyWeightsToHost_impl "
    "createGraph cycleCount destroyDispatcher detachFromDevice endDispatch endOutputsMove endParametersMove execute "
    "finalizeGraph getTimestamps importPoptorchMetadataFromFile loadEngineAndConnectStreams mapParamsToNames "
    "processDispatchAndImportExecutable readOptimizerState registerBuffersWithCallback registerCPUCallBack "
    "saveExecutableToFile setCustomCodeletsPath setPerReplica setRngState startDispatch startOutputsMove "
    "startParametersMove updateOptimizers writeOptimizerState"
)


def __getattr__(name: str) -> Any:
    if name not in _REFUSED.split():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return refusal(f"poptorch_core.{name}", "Use the methods of the executor and the functions of poptorch.")
