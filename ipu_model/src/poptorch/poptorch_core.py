"""Names that programs reach through PopTorch's native module: error classes, errors on demand and two checks."""

from __future__ import annotations

from collections.abc import Mapping

from ipu_model.errors import Error, RecoverableError, UnrecoverableError
from poptorch._test_errors import TestErrorType
from poptorch._test_errors import throw_test_error as _throwTestError
from poptorch.options.popart_keys import validate_options

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
