import pytest
import torch

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


def test_io_tiles():
    opts = poptorch.Options()
    for tiles in (20, 33, 200):
        with pytest.raises(AssertionError, match="numIOTiles must be an even number between 32 and 192."):
            opts.TensorLocations.numIOTiles(tiles)
    opts.TensorLocations.numIOTiles(32)


@pytest.mark.parametrize(("key", "value", "kind"), [("a", 1, "uint64"), ("a", True, "bool"), ("a", "b", "string")])
def test_unknown_backend_option(key, value, kind):
    opts = poptorch.Options()
    opts._Popart.set(key, value)
    with pytest.raises(poptorch.Error, match=f"Unknown {kind} option {key}"):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(1))


def test_no_accumulation_in_inference():
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    error = (
        r"You must set poptorch.Options\(\).Training.gradientAccumulation to 1 or leave it as its default value \(1\) "
        r"when running a poptorch.inferenceModel\(\)."
    )
    with pytest.raises(poptorch.Error, match=error):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)


def test_cycle_count():
    model = poptorch.inferenceModel(torch.nn.ReLU())
    with pytest.raises(poptorch.Error, match="Cycle count logging is disabled"):
        model.cycleCount()
    model = poptorch.inferenceModel(torch.nn.ReLU(), poptorch.Options().logCycleCount(True))
    with pytest.raises(poptorch.Error, match="Please run the model at least once before obtaining cycle count"):
        model.cycleCount()
    model(torch.ones(1))
    assert model.cycleCount() > 0


def test_no_block_of_a_number():
    with pytest.raises(poptorch.Error, match="is not an instance of torch.nn.Module or function"):
        poptorch.BeginBlock(3)
