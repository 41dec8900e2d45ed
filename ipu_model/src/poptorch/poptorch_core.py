"""Names that programs reach through PopTorch's native module: error classes, errors on demand and two checks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NoReturn

from ipu_model.errors import Error, RecoverableError, UnrecoverableError
from poptorch.options.handover import validate_options

__all__ = [
    "Error", "RecoverableError", "TestErrorType", "UnrecoverableError", "_throwTestError", "_validateOptions",
    "isCompilingWithDispatcher",
]  # fmt: skip


def _validateOptions(options: Mapping[str, object]) -> None:
    """Check `Options.toDict()`; raise `poptorch.Error` for an unknown or ill-typed key."""
    validate_options(options)


def isCompilingWithDispatcher() -> bool:
    """Return whether a model's `forward` is being traced for the device right now."""
    # Importing the engine's tracing only here keeps this module free of the capture machinery.
    from ipu_model import tracing

    return tracing.is_tracing()


# Where PopTorch's own function raises them: the numbered context of a backend error.
_LOCATION = "  [0] throwTestError::bottomLevel\n  [1] throwTestError::topLevel"


class TestErrorType(IntEnum):
    """The kinds of errors that `_throwTestError` raises."""

    # pytest collects classes by their names.
    __test__ = False

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


# The `type` and message of each.
_KINDS = {
    TestErrorType.Poptorch: ("poptorch_cpp_error", "This is a PopTorch error"),
    TestErrorType.Popart: ("popart_exception", "This is a PopART error"),
    TestErrorType.PopartInternal: ("popart_internal_exception", "This is an internal PopART error"),
    TestErrorType.Poplibs: ("poplibs_exception", "This is a PopLibs error"),
    TestErrorType.PoplarUnrecoverable: ("poplar_unrecoverable_runtime_error", "This is not recoverable"),
    TestErrorType.PoplarUnknown: ("poplar_unknown_runtime_error", "Don't know what happened"),
    TestErrorType.PoplarRecoverableFullReset: ("poplar_recoverable_runtime_error", "Reboot needed"),
    TestErrorType.PoplarLinkError: ("poplar_link_error", "Link error: -lfoo not found"),
}


def _throwTestError(kind: TestErrorType) -> NoReturn:
    """Raise an error of this kind: `RecoverableError`, `UnrecoverableError` or else `Error`.

    Raises `ValueError` for an unknown kind.
    """
    kind = TestErrorType(kind)
    name, message = _KINDS[kind]
    if kind is TestErrorType.PoplarRecoverableFullReset:
        raise RecoverableError(message, recovery_action="FULL_RESET", type=name, location=_LOCATION)
    if kind is TestErrorType.PoplarUnrecoverable:
        raise UnrecoverableError(message, type=name, location=_LOCATION)
    raise Error(message, type=name, location=_LOCATION)
