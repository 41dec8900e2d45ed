"""Replaying a captured graph gives eager PyTorch's numbers, bit for bit, for the kinds of model the course meets."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from tracing_support import KeepGradients, Net, session_of


def classifier(body: nn.Module) -> Net:
    def forward(net: Net, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = net.body(x)
        return out, F.cross_entropy(out, y)

    return Net(forward, body=body)


def sequence_model() -> Net:
    return Net(
        lambda net, x: net.head(net.lstm(net.embed(x))[0][:, -1]),
        embed=nn.Embedding(11, 8),
        lstm=nn.LSTM(8, 12, num_layers=2, batch_first=True, dropout=0.3),
        head=nn.Linear(12, 11),
    )


def attention() -> Net:
    return Net(
        lambda net, x: net.head(net.layer(net.embed(x)).mean(1)),
        embed=nn.Embedding(11, 16),
        layer=nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True),
        head=nn.Linear(16, 11),
    )


images, tokens = partial(torch.randn, 4, 3, 32, 32), partial(torch.randint, 0, 11, (4, 6))
MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 20), nn.GELU(), nn.Linear(20, 11)), images),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=11), images),
    "lstm with dropout": (sequence_model, tokens),
    "transformer": (attention, tokens),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_loss_gradients_and_statistics_are_those_of_eager(name: str) -> None:
    make, inputs = MODELS[name]
    torch.manual_seed(1)
    model = classifier(make())
    eager = copy.deepcopy(model)
    session = session_of(model, inputs(), torch.randint(0, 11, (4,)))
    x, y = inputs(), torch.randint(0, 11, (4,))
    keeper = KeepGradients(session)
    session.randomness.restore([7])
    outputs, loss = session.run([x, y])

    torch.manual_seed(7)
    expected, expected_loss = eager(x, y)
    expected_loss.backward()
    # An LSTM's weight gradient is one product over all steps here: PyTorch adds the steps up in another order.
    same = torch.allclose if "lstm" in name else torch.equal
    assert same(outputs, expected)
    assert same(loss, expected_loss)
    for key, parameter in eager.named_parameters():
        assert same(keeper.gradients[key], parameter.grad), key
    for key, buffer in eager.named_buffers():
        if buffer.is_floating_point():
            assert torch.equal(session.download()[key], buffer), key


def test_an_autocast_of_the_program_does_not_reach_into_the_replay() -> None:
    session, x = session_of(nn.Linear(64, 8), torch.zeros(4, 64), training=False), torch.randn(4, 64)
    expected = session.run([x])[0]
    with torch.autocast("cpu"):
        assert torch.equal(session.run([x])[0], expected)


def matched(net: Net, x: Tensor) -> Tensor:
    """A loss against values laid out channel after channel, and a view of what the loss is taken of.

    mse_loss_backward is dense when it is computed; on fake tensors it has the layout of its second operand.
    """
    rows = net.layer(x).permute(0, 2, 3, 1).reshape(-1, 6)  # a copy, whose gradient is a view
    back = rows.view(len(x), 4, 4, 6).permute(0, 3, 1, 2)
    return F.mse_loss(torch.zeros(back.shape), back)


def attended(net: Net, x: Tensor) -> Tensor:
    """Group norm of what attention over pixels leaves: channels that lie last, in channels-first shape.

    The stride of a batch of one is 8 when it is computed and 128 on fake tensors, which PyTorch takes for dense.
    """
    pixels = net.layer(x.flatten(2).transpose(1, 2))
    return F.mse_loss(net.norm(pixels.transpose(1, 2).reshape(x.shape) + x), x)


@pytest.mark.parametrize(
    ("function", "layer", "shape"),
    [
        (matched, nn.Conv2d(2, 6, 3), (3, 2, 6, 6)),
        (attended, nn.Linear(8, 8), (1, 8, 4, 4)),
        (attended, nn.Linear(8, 8), (2, 8, 4, 4)),
    ],
)
def test_layouts_that_fake_tensors_do_not_have(function: Any, layer: nn.Module, shape: tuple[int, ...]) -> None:
    model = Net(function, layer=copy.deepcopy(layer), norm=nn.GroupNorm(4, 8))
    eager, x = copy.deepcopy(model), torch.randn(shape, generator=torch.Generator().manual_seed(0))
    session = session_of(model, x)
    keeper = KeepGradients(session)
    session.run([x])
    eager(x).backward()
    for name, gradient in keeper.gradients.items():
        torch.testing.assert_close(gradient, eager.get_parameter(name).grad, rtol=1e-6, atol=1e-7)
    assert "layer.weight" in keeper.gradients


# CTC loss is an op of the graph, with lengths that are constants or inputs.

LOGITS = torch.randn(9, 3, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(1, 6, (3, 4), generator=torch.Generator().manual_seed(1))
INPUT_LENGTHS, TARGET_LENGTHS = torch.tensor([9, 7, 8]), torch.tensor([4, 3, 4])


def recogniser(constant: bool = False, **settings: Any) -> Net:
    def forward(net: Net, targets: Tensor, *lengths: Any) -> Tensor:
        lengths = ((9, 7, 8), (4, 3, 4)) if constant else lengths
        return F.ctc_loss(net.logits.log_softmax(2), targets, *lengths, **settings)

    return Net(forward, logits=nn.Parameter(LOGITS.clone()))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    "settings",
    [{}, {"reduction": "sum"}, {"reduction": "none"}, {"blank": 5}, {"zero_infinity": True}],
    ids=str,
)
def test_ctc_loss_and_its_gradient_are_pytorchs(constant: bool, settings: dict[str, object]) -> None:
    """Lengths may differ from call to call."""
    targets = TARGETS % 5 if "blank" in settings else TARGETS
    inputs = [t.to(torch.int64 if constant else torch.int32) for t in (targets, INPUT_LENGTHS, TARGET_LENGTHS)]
    model = recogniser(constant, **settings)
    session = session_of(model, *inputs)
    keeper = KeepGradients(session)
    for lengths in (inputs[2], torch.tensor([1, 2, 1], dtype=inputs[2].dtype)):
        (loss,) = session.run([*inputs[:2], lengths])
        model.zero_grad()
        expected = model(*inputs[:2], lengths)
        expected.sum().backward()
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(keeper.gradients["logits"], model.logits.grad)
