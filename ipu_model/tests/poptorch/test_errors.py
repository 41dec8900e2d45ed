"""The error classes and what they say (executor reference, section 17)."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

import poptorch
from poptorch.poptorch_core import TestErrorType, _throwTestError

# Kind of error on demand -> class and `type`.
KINDS = {
    "Poptorch": (poptorch.Error, "poptorch_cpp_error"),
    "Popart": (poptorch.Error, "popart_exception"),
    "PopartInternal": (poptorch.Error, "popart_internal_exception"),
    "Poplibs": (poptorch.Error, "poplibs_exception"),
    "PoplarUnrecoverable": (poptorch.UnrecoverableError, "poplar_unrecoverable_runtime_error"),
    "PoplarUnknown": (poptorch.Error, "poplar_unknown_runtime_error"),
    "PoplarRecoverableFullReset": (poptorch.RecoverableError, "poplar_recoverable_runtime_error"),
    "PoplarLinkError": (poptorch.Error, "poplar_link_error"),
}


def test_the_only_argument_is_the_whole_text() -> None:
    error = poptorch.createPoptorchError("no")
    assert error.args == (str(error),) == ("'poptorch_py_error': no",)
    assert (error.message, error.type, error.location) == ("no", "poptorch_py_error", "")
    # A traceback's last line names the class by its module, which is PopTorch's.
    assert traceback.format_exception_only(error) == ["poptorch.poptorch_core.Error: 'poptorch_py_error': no\n"]
    for name in ("Error", "RecoverableError", "UnrecoverableError"):
        kind = getattr(poptorch, name)
        assert kind is getattr(poptorch.poptorch_core, name)
        assert kind.__module__ == "poptorch.poptorch_core"
        assert issubclass(kind, poptorch.Error)
        assert not issubclass(kind, RuntimeError)  # programs tell misuse apart from what PyTorch raises


def test_each_kind_has_its_class_type_and_context_and_keeps_them_between_processes() -> None:
    assert [kind.name for kind in TestErrorType] == list(KINDS)
    for kind in TestErrorType:
        with pytest.raises(poptorch.Error) as caught:
            _throwTestError(kind)
        error = caught.value
        assert (type(error), error.type) == KINDS[kind.name]
        assert str(error).startswith(f"'{error.type}': {error.message}")
        assert str(error).endswith(error.location)
        assert "[0] throwTestError" in error.location
        assert "throwTestError" not in error.message
        for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(twin), vars(twin), str(twin)) == (type(error), vars(error), str(error))


def test_a_recoverable_error_says_what_has_to_be_done() -> None:
    with pytest.raises(poptorch.RecoverableError) as caught:
        _throwTestError(TestErrorType.PoplarRecoverableFullReset)
    assert caught.value.recovery_action == "FULL_RESET"
    assert f"{caught.value.message}. Recovery action required: FULL_RESET\n" in str(caught.value)
    assert str(poptorch.RecoverableError("device lost")).endswith("device lost. Recovery action required: IPU_RESET")
