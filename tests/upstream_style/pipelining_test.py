import helpers
import pytest
import torch

import poptorch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            poptorch.BeginBlock(torch.nn.Linear(2, 2), f"block{i}", ipu_id=i) for i in range(4)
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x, poptorch.identity_loss(x, reduction="mean")


def test_stages_and_iterations():
    error = r"deviceIterations must be greater than or equal to the number of pipeline stages \(4\)"
    with pytest.raises(poptorch.Error, match=error):
        poptorch.inferenceModel(Model(), poptorch.Options().deviceIterations(3))(torch.ones(3, 2))


def test_stages_and_accumulation():
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(6)
    error = r"gradientAccumulation must be greater than or equal to the number of pipeline stages \(7\)"
    with pytest.raises(poptorch.Error, match=error):
        poptorch.trainingModel(Model(), opts)(torch.ones(6, 2))


def test_block_twice():
    layer = poptorch.BeginBlock(torch.nn.Linear(2, 2), "a", 0)
    with pytest.raises(poptorch.Error, match="module has already been assigned to a block"):
        poptorch.BeginBlock(layer, "b", 1)
    with pytest.raises(poptorch.Error, match="is not an instance of torch.nn.Module or function"):
        poptorch.BeginBlock(3)


def test_strategies():
    with pytest.raises(AssertionError, match="associated with more than one stage"):
        poptorch.PipelinedExecution("a", "a")
    with pytest.raises(AssertionError, match="no AutoStage for PhasedExecution"):
        poptorch.SerialPhasedExecution()
    with pytest.raises(AssertionError, match="Unknown block"):
        poptorch.PipelinedExecution("a").stage("b")


@helpers.printCapfdOnExit
@helpers.overridePoptorchLogLevel("DEBUG")
def test_log_of_stages(capfd):
    poptorch.inferenceModel(Model(), poptorch.Options().deviceIterations(4))(torch.ones(4, 2))
    log = helpers.LogChecker(capfd)
    for ipu in range(4):
        log.assert_contains(f"mode(Pipelined), ipu({ipu}), stage({ipu})")
    log.assert_contains("enablePipelining set to value 1")


def test_print_model():
    text = repr(poptorch.inferenceModel(Model()))
    assert "BeginBlock(user_id=block2, ipu_id=2) Linear(in_features=2, out_features=2, bias=True)" in text
