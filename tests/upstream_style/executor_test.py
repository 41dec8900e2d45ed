import helpers
import pytest
import torch

import poptorch


def train(model=None, options=None, optimizer=None):
    return helpers.trainingModelWithLoss(
        model or torch.nn.Linear(2, 2), torch.nn.MSELoss(), options=options, optimizer=optimizer
    )


def test_wrapped_twice():
    model = torch.nn.Linear(2, 2)
    poptorch_model = poptorch.trainingModel(model)
    with pytest.raises(RuntimeError, match="Model has already been wrapped in 'poptorch.trainingModel'"):
        poptorch.trainingModel(model)
    del poptorch_model


def test_not_compiled():
    model = poptorch.inferenceModel(torch.nn.ReLU())
    for call in (model.copyWeightsToHost, model.copyWeightsToDevice, model.attachToDevice, model.detachFromDevice):
        with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed"):
            call()
    assert not model.isCompiled()
    assert not model.isAttachedToDevice()


def test_attach_detach():
    model = poptorch.inferenceModel(torch.nn.ReLU())
    model(torch.ones(1))
    with pytest.raises(poptorch.Error, match="Device is already attached"):
        model.attachToDevice()
    model.detachFromDevice()
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        model.detachFromDevice()


@helpers.printCapfdOnExit
def test_compile_twice(capfd):
    model = poptorch.inferenceModel(torch.nn.ReLU())
    model.compile(torch.ones(1))
    model.compile(torch.ones(1))
    helpers.LogChecker(capfd).assert_contains("Call to compile() ignored: model already compiled")


def test_backward():
    out, loss = train()(torch.ones(1, 2), torch.ones(1, 2))
    error = (
        r"backward\(\) cannot be called explicitly on outputs of a PopTorch model\. If you're using a trainingModel, "
        r"the backwards pass is performed automatically when invoking the model\. If you're using an inferenceModel, "
        r"you should use a trainingModel instead\."
    )
    for tensor in (out, loss):
        with pytest.raises(poptorch.Error, match=error):
            tensor.backward()


@pytest.mark.parametrize("method", ["to", "cpu"])
def test_move_to_cpu(method):
    class Model(torch.nn.Module):
        def forward(self, x):
            return (x + 1).to("cpu") if method == "to" else (x + 1).cpu()

    with pytest.raises(poptorch.Error, match="Illegal move to CPU .* Instead, return this output as an IPU tensor"):
        poptorch.inferenceModel(Model())(torch.ones(1))
    assert not poptorch.isRunningOnIpu()


def test_reassigned_buffer():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("my_buffer", torch.tensor([1.0]))

        def forward(self, x):
            self.my_buffer = self.my_buffer + 1
            return self.my_buffer + x

    error = (
        "Buffer my_buffer is reassigned within the model when calling the forward method. This is not supported. "
        r"Consider using self.my_buffer.copy_\(src\) to copy data from a source tensor"
    )
    with pytest.raises(poptorch.Error, match=error):
        poptorch.inferenceModel(Model())(torch.ones(1))


def test_loss_needed():
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
        poptorch.trainingModel(torch.nn.Linear(2, 2))(torch.ones(1, 2))
    with pytest.raises(AssertionError, match="Unsupported reduction type!"):
        poptorch.identity_loss(torch.ones(1), reduction="max")


@helpers.printCapfdOnExit
def test_extra_attributes(capfd):
    model = torch.nn.Linear(2, 2)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    poptorch_model = train(model, optimizer=optimizer)
    data = torch.ones(1, 2), torch.ones(1, 2)
    poptorch_model(*data)
    optimizer.extra = 1
    optimizer.param_groups[0]["initial_lr"] = 0.1
    poptorch_model.setOptimizer(optimizer)
    poptorch_model(*data)
    log = helpers.LogChecker(capfd)
    log.assert_contains("Ignoring unexpected optimizer attribute in SGD2 optimizer: ['extra']")
    log.assert_contains("Ignoring unexpected group 0 attribute in SGD2 optimizer: ['initial_lr']")


def test_constant_attribute():
    model = torch.nn.Linear(2, 2)
    poptorch_model = train(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    poptorch_model(torch.ones(1, 2), torch.ones(1, 2))
    with pytest.raises(poptorch.Error, match="Can not replace a constant value with a non constant value"):
        poptorch_model.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))
    with pytest.raises(AssertionError, match="Expected a number for"):
        poptorch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    with pytest.raises(AssertionError, match="Accumulation types must be either torch.float32 or torch.float16"):
        poptorch.optim.SGD(model.parameters(), lr=0.1, accum_type=torch.int32)


def test_copy_of_a_trained_model():
    model = torch.nn.Linear(2, 2)
    poptorch_model = train(model)
    before = model.weight.detach().clone()
    poptorch_model(torch.ones(1, 2), torch.ones(1, 2))
    twin = torch.nn.Linear(2, 2)
    twin.load_state_dict(model.state_dict())
    assert not torch.equal(before, twin.weight)
    helpers.assert_allclose(expected=model.bias.detach(), actual=twin.bias.detach())
