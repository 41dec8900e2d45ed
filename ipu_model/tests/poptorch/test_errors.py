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


def thrown(kind: str) -> poptorch.Error:
    """Return the error on demand of this kind."""
    with pytest.raises(poptorch.Error) as caught:
        _throwTestError(TestErrorType[kind])
    return caught.value


def test_they_belong_to_the_same_module_as_in_poptorch() -> None:
    """A traceback's last line names the class by its module."""
    assert traceback.format_exception_only(poptorch.createPoptorchError("no")) == [
        "poptorch.poptorch_core.Error: 'poptorch_py_error': no\n"
    ]
    for name in ("Error", "RecoverableError", "UnrecoverableError"):
        assert getattr(poptorch, name) is getattr(poptorch.poptorch_core, name)
        assert getattr(poptorch, name).__module__ == "poptorch.poptorch_core"


def test_the_only_argument_is_the_whole_text() -> None:
    error = poptorch.createPoptorchError("no")
    assert error.args == (str(error),) == ("'poptorch_py_error': no",)
    assert (error.message, error.type, error.location) == ("no", "poptorch_py_error", "")


def test_the_kinds_are_those_of_the_backend() -> None:
    assert [kind.name for kind in TestErrorType] == list(KINDS)


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_kind_has_its_class_type_and_context(kind: str) -> None:
    error = thrown(kind)
    assert (type(error), error.type) == KINDS[kind]
    assert str(error).startswith(f"'{error.type}': {error.message}")
    assert str(error).endswith(error.location)
    assert "[0] throwTestError" in error.location
    assert "throwTestError" not in error.message


def test_a_recoverable_error_says_what_has_to_be_done() -> None:
    error = thrown("PoplarRecoverableFullReset")
    assert isinstance(error, poptorch.RecoverableError)
    assert error.recovery_action == "FULL_RESET"
    assert f"{error.message}. Recovery action required: FULL_RESET\n" in str(error)
    assert str(poptorch.RecoverableError("device lost")).endswith("device lost. Recovery action required: IPU_RESET")


@pytest.mark.parametrize("kind", list(KINDS))
def test_errors_keep_everything_on_their_way_between_processes(kind: str) -> None:
    error = thrown(kind)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert vars(twin) == vars(error)
        assert str(twin) == str(error)


def test_misuse_is_no_runtime_error() -> None:
    """Programs tell it apart from what PyTorch raises."""
    for kind in (poptorch.Error, poptorch.RecoverableError, poptorch.UnrecoverableError):
        assert not issubclass(kind, RuntimeError)
        assert issubclass(kind, poptorch.Error)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="8"):
        _throwTestError(8)  # type: ignore[arg-type]
