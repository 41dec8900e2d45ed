"""Makes the errors that PopTorch's Python checks raise."""

from __future__ import annotations

from ipu_model.errors import Error


def createPoptorchError(msg: str) -> Error:
    """Return, not raise, a `poptorch.Error` of type `poptorch_py_error` with this message."""
    return Error(msg, type="poptorch_py_error", location="")
