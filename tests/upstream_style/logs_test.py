import collections

import helpers
import torch

import poptorch


class FourBlocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            poptorch.BeginBlock(torch.nn.Linear(2, 2), f"block{i}", ipu_id=i) for i in range(4)
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x, poptorch.identity_loss(x, reduction="mean")


@helpers.printCapfdOnExit
def test_compile_twice(capfd):
    model = poptorch.inferenceModel(torch.nn.ReLU())
    model.compile(torch.ones(1))
    model.compile(torch.ones(1))
    helpers.LogChecker(capfd).assert_contains("Call to compile() ignored: model already compiled")


@helpers.printCapfdOnExit
def test_extra_attributes(capfd):
    model = torch.nn.Linear(2, 2)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    poptorch_model = helpers.trainingModelWithLoss(model, torch.nn.MSELoss(), optimizer=optimizer)
    data = torch.ones(1, 2), torch.ones(1, 2)
    poptorch_model(*data)
    optimizer.extra = 1
    optimizer.param_groups[0]["initial_lr"] = 0.1
    poptorch_model.setOptimizer(optimizer)
    poptorch_model(*data)
    log = helpers.LogChecker(capfd)
    log.assert_contains("Ignoring unexpected optimizer attribute in SGD2 optimizer: ['extra']")
    log.assert_contains("Ignoring unexpected group 0 attribute in SGD2 optimizer: ['initial_lr']")


@helpers.printCapfdOnExit
def test_non_contiguous(capfd):
    model = poptorch.inferenceModel(torch.nn.ReLU())
    model(torch.ones(2, 3).transpose(0, 1))
    log = helpers.LogChecker(capfd)
    log.assert_contains(
        "[warning]", "At least one input tensor is not contiguous: non-contiguous tensors will be converted."
    )


@helpers.printCapfdOnExit
def test_input_with_gradient(capfd):
    model = poptorch.inferenceModel(torch.nn.ReLU())
    model(torch.ones(2, requires_grad=True))
    helpers.LogChecker(capfd).assert_contains(
        "Input tensor has requires_grad=True set. This tensor will be detached because backward pass via inputs is "
        "not supported."
    )


@helpers.printCapfdOnExit
def test_dict_inputs(capfd):
    class Model(torch.nn.Module):
        def forward(self, **kwargs):
            return {key: value + 1 for key, value in kwargs["d"].items()}

    inputs = collections.OrderedDict(x=torch.ones(1), y=torch.zeros(1))
    out = poptorch.inferenceModel(Model())(d=inputs)
    assert type(out) is dict
    assert out["x"] == 2
    helpers.LogChecker(capfd).assert_contains("Dicts as inputs only have partial support")


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


@helpers.printCapfdOnExit
@helpers.overridePoptorchLogLevel("DEBUG")
def test_log_of_stages(capfd):
    poptorch.inferenceModel(FourBlocks(), poptorch.Options().deviceIterations(4))(torch.ones(4, 2))
    log = helpers.LogChecker(capfd)
    for ipu in range(4):
        log.assert_contains(f"mode(Pipelined), ipu({ipu}), stage({ipu})")
    log.assert_contains("enablePipelining set to value 1")
