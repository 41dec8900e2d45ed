import pytest

import poptorch

KINDS = poptorch.poptorch_core.TestErrorType


def throw(kind):
    with pytest.raises(poptorch.Error) as info:
        poptorch.poptorch_core._throwTestError(kind)
    return info.value


@pytest.mark.parametrize(
    ("kind", "type_", "message"),
    [
        (KINDS.Poptorch, "poptorch_cpp_error", "This is a PopTorch error"),
        (KINDS.Popart, "popart_exception", "This is a PopART error"),
        (KINDS.PoplarUnknown, "poplar_unknown_runtime_error", "Don't know what happened"),
        (KINDS.PoplarLinkError, "poplar_link_error", "-lfoo not found"),
    ],
)
def test_error_parts(kind, type_, message):
    error = throw(kind)
    assert error.type == type_
    assert message in error.message
    assert "[0] throwTestError::bottomLevel" in error.location
    assert error.args[0] == str(error)


def test_recoverable():
    error = throw(KINDS.PoplarRecoverableFullReset)
    assert isinstance(error, poptorch.RecoverableError)
    assert error.recovery_action == "FULL_RESET"
    assert "Reboot needed" in error.message


def test_unrecoverable():
    assert isinstance(throw(KINDS.PoplarUnrecoverable), poptorch.UnrecoverableError)


def test_created():
    error = poptorch.createPoptorchError("text")
    assert (error.type, error.message, error.location) == ("poptorch_py_error", "text", "")
    assert str(error) == "'poptorch_py_error': text"
