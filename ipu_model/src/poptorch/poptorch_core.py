"""Names that programs reach through PopTorch's native module: error classes, two checks, errors for trying handlers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NoReturn

from ipu_model.errors import Error, RecoverableError, UnrecoverableError
from poptorch.options.popart_keys import validate_options

__all__ = [
    "Error", "RecoverableError", "TestErrorType", "UnrecoverableError", "_throwTestError", "_validateOptions",
    "isCompilingWithDispatcher",
]  # fmt: skip


class TestErrorType(Enum):
    """The kinds of error that `_throwTestError` raises."""

    # Test frameworks collect classes of this name.
    __test__ = False

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


_TYPES = {
    TestErrorType.Poptorch: "poptorch_cpp_error",
    TestErrorType.Popart: "popart_exception",
    TestErrorType.PopartInternal: "popart_internal_exception",
    TestErrorType.Poplibs: "poplibs_exception",
    TestErrorType.PoplarUnrecoverable: "poplar_unrecoverable_runtime_error",
    TestErrorType.PoplarUnknown: "poplar_unknown_runtime_error",
    TestErrorType.PoplarRecoverableFullReset: "poplar_recoverable_runtime_error",
    TestErrorType.PoplarLinkError: "poplar_link_error",
}


def _throwTestError(kind: TestErrorType) -> NoReturn:
    """Raise an error as the backend raises it, so that a program can try its handlers.

    Raises:
        TypeError: `kind` is none.
        Error: always otherwise; `RecoverableError` or `UnrecoverableError` where the kind says so.
    """
    if not isinstance(kind, TestErrorType):
        raise TypeError(f"_throwTestError takes a poptorch.poptorch_core.TestErrorType, not {kind!r}.")
    text = f"An error of kind {kind.name}, raised to try how it is handled."
    if kind is TestErrorType.PoplarRecoverableFullReset:
        raise RecoverableError(text, recovery_action="FULL_RESET", type=_TYPES[kind])
    raise (UnrecoverableError if kind is TestErrorType.PoplarUnrecoverable else Error)(text, type=_TYPES[kind])


def _validateOptions(options: Mapping[str, object]) -> None:
    """Check `Options.toDict()`; raise `poptorch.Error` for an unknown or ill-typed key."""
    validate_options(options)


def isCompilingWithDispatcher() -> bool:
    """Return whether a model's `forward` is being traced for the device right now."""
    # Importing the engine's tracing only here keeps this module free of the capture machinery.
    from ipu_model import tracing

    return tracing.is_tracing()
