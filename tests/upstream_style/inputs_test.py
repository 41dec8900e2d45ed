import collections
import re

import helpers
import pytest
import torch

import poptorch


class SimpleAdder(torch.nn.Module):
    def forward(self, t1, t2=None):
        return t1 if t2 is None else t1 + t2


def test_simple_tuple():
    class Model(torch.nn.Module):
        def forward(self, t):
            return t[0] + t[1] * t[2]

    model = poptorch.inferenceModel(Model())
    t = tuple(torch.tensor([float(i)]) for i in (1, 2, 3))
    assert model(t) == 7.0


@pytest.mark.parametrize("use_kwarg", [False, True])
def test_optional_inputs(use_kwarg):
    model = poptorch.inferenceModel(SimpleAdder())
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    assert (model(one, t2=two) if use_kwarg else model(one, two)) == 3.0


def test_none_then_tensor():
    model = poptorch.inferenceModel(SimpleAdder())
    model(torch.ones(1), None)
    with pytest.raises(poptorch.Error, match=r"Type mismatch for t2: expected <class 'NoneType'> but got"):
        model(torch.ones(1), torch.ones(1))


def test_changed_shape_and_type():
    model = poptorch.inferenceModel(SimpleAdder())
    model(torch.ones(1))
    with pytest.raises(
        poptorch.Error, match=r"Shape mismatch for t1: expected torch.Size\(\[1\]\) but got torch.Size\(\[2\]\)"
    ):
        model(torch.ones(2))
    with pytest.raises(poptorch.Error, match="Data type mismatch for t1: expected torch.float32 but got torch.int64"):
        model(torch.ones(1, dtype=torch.int64))


def test_too_many_and_unknown():
    model = poptorch.inferenceModel(SimpleAdder())
    with pytest.raises(AssertionError, match="Too many arguments provided"):
        model(torch.ones(1), torch.ones(1), torch.ones(1))
    with pytest.raises(AssertionError, match="is not a valid parameter"):
        model(torch.ones(1), other=torch.ones(1))
    with pytest.raises(poptorch.Error, match="Mandatory parameter t1 missing"):
        model(t2=torch.ones(1))


def test_zero_sized():
    model = poptorch.inferenceModel(SimpleAdder())
    with pytest.raises(poptorch.Error, match=re.escape("Zero-sized tensors are unsupported (Got shape [0, 2, 5, 5])")):
        model(torch.ones(0, 2, 5, 5))


@helpers.printCapfdOnExit
def test_non_contiguous(capfd):
    model = poptorch.inferenceModel(SimpleAdder())
    model(torch.ones(2, 3).transpose(0, 1))
    log = helpers.LogChecker(capfd)
    log.assert_contains(
        "[warning]", "At least one input tensor is not contiguous: non-contiguous tensors will be converted."
    )


@helpers.printCapfdOnExit
def test_input_with_gradient(capfd):
    model = poptorch.inferenceModel(SimpleAdder())
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


def test_not_a_multiple():
    opts = poptorch.Options().deviceIterations(4)
    model = poptorch.inferenceModel(SimpleAdder(), opts)
    with pytest.raises(
        AssertionError,
        match=r"Invalid batch dimension: In the input torch.Size\(\[3, 1\]\), the batch dimension \(3\) must be a "
        r"multiple of Options.deviceIterations\(4\)",
    ):
        model(torch.ones(3, 1))


def test_host_tensor():
    constant = torch.tensor([1.0])

    class Model(torch.nn.Module):
        def forward(self, x):
            return x + constant

    with pytest.raises(
        poptorch.Error,
        match=r"Expected an IPU tensor but got tensor\(device=cpu, shape=\[1\], dtype=.+\).*"
        r"Constant tensors should be moved explicitly to the IPU, via cpu_tensor.to\(\"ipu\"\)",
    ):
        poptorch.inferenceModel(Model())(torch.ones(1))
