import helpers
import pytest
import torch

import poptorch


@pytest.mark.parametrize("freeze", [poptorch.trainingModel, poptorch.inferenceModel])
def test_frozen(freeze):
    opts = poptorch.Options()
    freeze(torch.nn.Linear(1, 1), opts)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        opts.deviceIterations(2)
    opts.clone().deviceIterations(2)


def test_wrong_option():
    opts = poptorch.Options()
    with pytest.raises(AssertionError, match="Invalid option no_such_option"):
        opts.set(no_such_option=1)
    with pytest.raises(AssertionError, match="Unexpected type <class 'str'> for option device_iterations"):
        opts.deviceIterations("4")
    with pytest.raises(AttributeError, match="Invalid attribute no_such_option"):
        opts.no_such_option  # noqa: B018 (reading it is the test)


def test_io_tiles():
    opts = poptorch.Options()
    for tiles in (20, 33, 200):
        with pytest.raises(AssertionError, match="numIOTiles must be an even number between 32 and 192."):
            opts.TensorLocations.numIOTiles(tiles)
    opts.TensorLocations.numIOTiles(32)


@helpers.printCapfdOnExit
@helpers.overridePoptorchLogLevel("DEBUG")
def test_log_of_options(capfd):
    opts = poptorch.Options().replicationFactor(1)
    opts.Precision.enableStochasticRounding(True)
    opts._Popart.set("hardwareInstrumentations", {0, 1})
    poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(1))
    log = helpers.LogChecker(capfd)
    log.assert_contains("poptorch.Options set enableStochasticRounding to value true")
    log.assert_contains("poptorch.Options added 0 to hardwareInstrumentations")
    log.assert_contains("enablePipelining set to value 0")


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


def test_log_levels():
    with pytest.raises(ValueError, match="Invalid log level integer"):
        poptorch.setLogLevel(5)
    with pytest.raises(ValueError, match="Unknown log level: LOUD"):
        poptorch.setLogLevel("LOUD")
