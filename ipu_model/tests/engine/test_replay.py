"""Replaying a captured graph gives eager PyTorch's numbers, bit for bit, for the kinds of model the course meets."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from tracing_support import KeepGradients, session_of


class Classifier(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x, y):
        out = self.body(x)
        return out, F.cross_entropy(out, y)


class SequenceModel(nn.Module):
    """An LSTM over embedded tokens, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True, dropout=0.3)
        self.head = nn.Linear(12, 11)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0][:, -1])


class Attention(nn.Module):
    """A transformer encoder layer over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 11)

    def forward(self, x):
        return self.head(self.layer(self.embed(x)).mean(1))


def images(rows: int = 4) -> Tensor:
    return torch.randn(rows, 3, 32, 32)


def tokens(rows: int = 4) -> Tensor:
    return torch.randint(0, 11, (rows, 6))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 20), nn.GELU(), nn.Linear(20, 11)), images),
    "cnn with batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                              nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 11)),
        images,
    ),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=11), images),
    "lstm with dropout": (SequenceModel, tokens),
    "transformer": (Attention, tokens),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_outputs_loss_gradients_and_statistics_are_those_of_eager(name) -> None:
    make, inputs = MODELS[name]
    torch.manual_seed(1)
    model = Classifier(make())
    eager = copy.deepcopy(model)
    session = session_of(model, inputs(), torch.randint(0, 11, (4,)))
    x, y = inputs(), torch.randint(0, 11, (4,))
    session.update = keeper = KeepGradients()
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
    model = nn.Linear(64, 8)
    session = session_of(model, torch.zeros(4, 64), training=False)
    x = torch.randn(4, 64)
    expected = session.run([x])[0]
    with torch.autocast("cpu"):
        assert torch.equal(session.run([x])[0], expected)


class Matched(nn.Module):
    """A loss against values laid out channel after channel, and a view of what the loss is taken of."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.convolution(x).permute(0, 2, 3, 1).reshape(-1, 6)  # a copy, whose gradient is a view
        back = rows.view(len(x), 4, 4, 6).permute(0, 3, 1, 2)
        return F.mse_loss(torch.zeros(back.shape), back)


def test_a_gradient_that_is_laid_out_otherwise_than_pytorchs_meta_function_says() -> None:
    # mse_loss_backward is dense when it is computed; on fake tensors it has the layout of its second operand.
    torch.manual_seed(0)
    model = Matched()
    eager = copy.deepcopy(model)
    x = torch.randn(3, 2, 6, 6)
    session = session_of(model, x)
    session.update = keeper = KeepGradients()
    session.run([x])
    eager(x).backward()
    assert torch.equal(keeper.gradients["convolution.weight"], eager.convolution.weight.grad)


class Attended(nn.Module):
    """What attention over pixels leaves: channels that lie last, as a batch of one picture in channels-first shape."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(8, 8)
        self.norm = nn.GroupNorm(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.mixed(x.flatten(2).transpose(1, 2))
        picture = pixels.transpose(1, 2).reshape(x.shape) + x
        return F.mse_loss(self.norm(picture), x)


@pytest.mark.parametrize("pictures", [1, 2])
def test_group_norm_of_a_layout_that_fake_tensors_do_not_have(pictures: int) -> None:
    # The stride of a batch of one is 8 when it is computed and 128 on fake tensors, which PyTorch takes for dense.
    torch.manual_seed(0)
    model = Attended()
    eager = copy.deepcopy(model)
    x = torch.randn(pictures, 8, 4, 4)
    session = session_of(model, x)
    session.update = keeper = KeepGradients()
    session.run([x])
    eager(x).backward()
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(keeper.gradients[name], parameter.grad)


LOGITS = torch.randn(9, 3, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(1, 6, (3, 4), generator=torch.Generator().manual_seed(1))
INPUT_LENGTHS, TARGET_LENGTHS = torch.tensor([9, 7, 8]), torch.tensor([4, 3, 4])


class Recogniser(nn.Module):
    def __init__(self, *, lengths: str, **settings: Any) -> None:
        super().__init__()
        self.logits = nn.Parameter(LOGITS.clone())
        self.lengths, self.settings = lengths, settings

    def forward(self, targets: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        if self.lengths == "tuples":
            inputs, outputs = (9, 7, 8), (4, 3, 4)  # type: ignore[assignment]  # torch takes both
        log_probabilities = self.logits.log_softmax(2)
        return F.ctc_loss(log_probabilities, targets, inputs, outputs, **self.settings)


class TestCtcLoss:
    """CTC loss is an op of the graph, with lengths that are constants or inputs."""

    @pytest.mark.parametrize("settings", [
        {}, {"reduction": "sum"}, {"reduction": "none"}, {"blank": 5}, {"zero_infinity": True},
    ], ids=str)  # fmt: skip
    @pytest.mark.parametrize(("lengths", "integer"), [("tuples", torch.int64), ("inputs", torch.int32)])
    def test_loss_and_gradient_are_pytorchs(
        self, lengths: str, settings: dict[str, object], integer: torch.dtype
    ) -> None:
        targets = TARGETS % 5 if "blank" in settings else TARGETS
        inputs = [t.to(integer) for t in (targets, INPUT_LENGTHS, TARGET_LENGTHS)]
        model = Recogniser(lengths=lengths, **settings)
        session = session_of(model, *inputs)
        session.update = keeper = KeepGradients()
        (loss,) = session.run(inputs)
        expected = model(*inputs)
        expected.sum().backward()
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(keeper.gradients["logits"], model.logits.grad)

    def test_lengths_may_differ_from_call_to_call(self) -> None:
        model = Recogniser(lengths="inputs", reduction="none")
        session = session_of(model, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS, training=False)
        for lengths in (TARGET_LENGTHS, torch.tensor([1, 2, 1])):
            (losses,) = session.run([TARGETS, INPUT_LENGTHS, lengths])
            torch.testing.assert_close(losses, model(TARGETS, INPUT_LENGTHS, lengths).detach())

    def test_impossible_targets_give_infinity_or_zero_as_asked(self) -> None:
        """Four labels do not fit into two time steps."""
        short = torch.tensor([9, 2, 8])
        for zero, expected in ((False, float("inf")), (True, 0.0)):
            model = Recogniser(lengths="inputs", reduction="none", zero_infinity=zero)
            session = session_of(model, TARGETS, short, TARGET_LENGTHS)
            (losses,) = session.run([TARGETS, short, TARGET_LENGTHS])
            assert losses[1].item() == expected
            assert losses[0].item() > 0
