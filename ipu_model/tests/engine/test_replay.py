"""Replaying a captured graph gives eager PyTorch's numbers, bit for bit, for the kinds of model the course meets."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.batching import Batching, Keep, Returns
from ipu_model.compute.session import Session


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


def session_of(model: nn.Module, *inputs: Tensor, batching: Batching | None = None, **settings) -> Session:
    batching = batching or Batching()
    rows = tuple(t[: t.shape[0] // batching.slices] for t in inputs)
    session = Session(traced(model, *rows), batching, settings.pop("returns", Returns()), **settings)
    session.upload(dict(model.state_dict()))
    return session


@pytest.mark.parametrize("name", MODELS)
def test_outputs_loss_gradients_and_statistics_are_those_of_eager(name) -> None:
    make, inputs = MODELS[name]
    torch.manual_seed(1)
    model = Classifier(make())
    eager = copy.deepcopy(model)
    session = session_of(model, inputs(), torch.randint(0, 11, (4,)))
    x, y = inputs(), torch.randint(0, 11, (4,))
    gradients: dict[str, Tensor] = {}

    class KeepGradients:
        def step(self, found, scale):
            gradients.update(found)

    session.update = KeepGradients()
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
        assert same(gradients[key], parameter.grad), key
    for key, buffer in eager.named_buffers():
        if buffer.is_floating_point():
            assert torch.equal(session.download()[key], buffer), key


def test_dropout_differs_between_micro_batches_and_replicas_and_repeats_under_a_seed() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    x = torch.ones(8, 64)
    batching = Batching(device_iterations=2, replicas=2)

    def run() -> Tensor:
        specs = traced(model, x[:2], training=False)
        return Session(specs, batching, Returns(Keep.ALL), seed=3).run([x])[0]

    first = run()
    parts = first.split(2)
    assert len({tuple(part.flatten().tolist()) for part in parts}) == 4
    before = torch.get_rng_state()
    assert torch.equal(first, run())
    assert torch.equal(before, torch.get_rng_state()), "the host's generator is not touched"


def test_statistics_are_updated_per_micro_batch_and_kept_per_replica() -> None:
    model = nn.BatchNorm1d(3)
    x = torch.randn(12, 3)
    graph = traced(model, x[:2], training=False)
    session = Session(graph, Batching(device_iterations=3, replicas=2), Returns(Keep.ALL))
    session.upload(dict(model.state_dict()))
    session.run([x])
    first_replica = nn.BatchNorm1d(3)
    # Rows are laid out [D, A, R, B]: replica 0 reads slices 0, 2 and 4.
    for index in (0, 2, 4):
        first_replica(x.split(2)[index])
    assert torch.equal(session.download()["running_mean"], first_replica.running_mean)
    assert torch.equal(session.download()["running_var"], first_replica.running_var)


def test_a_constant_changed_in_forward_starts_from_its_compile_time_value_each_time() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.zeros(1)
            self.register_buffer("counted", torch.zeros(1))

        def forward(self, x):
            self.plain += 1
            self.counted += 1
            return x * 0 + self.plain, x * 0 + self.counted

    model = Counting()
    session = Session(traced(model, torch.ones(1), training=False), Batching(), Returns())
    results = [tuple(int(t) for t in session.run([torch.ones(1)])) for _ in range(3)]
    assert results == [(1, 1), (1, 2), (1, 3)]
    assert model.plain.item() == 0


def test_results_do_not_share_memory_with_weights_inputs_or_each_other() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            y = x + 1
            return self.weight, x, y, y, y[:, 1:]

    session = Session(traced(Net(), torch.zeros(2, 3), training=False), Batching(), Returns())
    session.upload({"weight": torch.ones(3)})
    x = torch.zeros(2, 3)
    results = session.run([x])
    pointers = [t.untyped_storage().data_ptr() for t in (*results, x, session.download()["weight"])]
    assert len(set(pointers)) == len(pointers)


def test_an_input_changed_in_forward_is_changed_for_the_caller() -> None:
    class InPlace(nn.Module):
        def forward(self, x):
            x.add_(1)

    for dtype in (torch.float32, torch.float16):
        x = torch.zeros(4, dtype=dtype)
        Session(traced(InPlace(), x[:2], training=False), Batching(device_iterations=2), Returns()).run([x])
        assert torch.equal(x, torch.ones(4, dtype=dtype))


def test_integers_come_back_as_32_bits() -> None:
    class Net(nn.Module):
        def forward(self, x, i):
            return x.argmax(1), i, x.double()

    x, i = torch.randn(4, 3), torch.tensor([1, 2, 3, 2**32 + 5])
    results = Session(traced(Net(), x, i, training=False), Batching(), Returns()).run([x, i])
    assert [t.dtype for t in results] == [torch.int32, torch.int32, torch.float32]
    assert results[1].tolist() == [1, 2, 3, 5], "large values are cut to 32 bits"


def test_an_autocast_of_the_program_does_not_reach_into_the_replay() -> None:
    model = nn.Linear(64, 8)
    session = Session(traced(model, torch.zeros(4, 64), training=False), Batching(), Returns())
    session.upload(dict(model.state_dict()))
    x = torch.randn(4, 64)
    expected = session.run([x])[0]
    with torch.autocast("cpu"):
        assert torch.equal(session.run([x])[0], expected)


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


class KeepGradients:
    def step(self, gradients, scale) -> None:
        self.gradients = dict(gradients)


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
        session = Session(traced(model, *inputs), Batching(), Returns())
        session.upload(dict(model.state_dict()))
        session.update = keeper = KeepGradients()
        (loss,) = session.run(inputs)
        expected = model(*inputs)
        expected.sum().backward()
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(keeper.gradients["logits"], model.logits.grad)

    def test_lengths_may_differ_from_call_to_call(self) -> None:
        model = Recogniser(lengths="inputs", reduction="none")
        graph = traced(model, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS, training=False)
        session = Session(graph, Batching(), Returns())
        session.upload(dict(model.state_dict()))
        for lengths in (TARGET_LENGTHS, torch.tensor([1, 2, 1])):
            (losses,) = session.run([TARGETS, INPUT_LENGTHS, lengths])
            torch.testing.assert_close(losses, model(TARGETS, INPUT_LENGTHS, lengths).detach())

    def test_impossible_targets_give_infinity_or_zero_as_asked(self) -> None:
        """Four labels do not fit into two time steps."""
        short = torch.tensor([9, 2, 8])
        for zero, expected in ((False, float("inf")), (True, 0.0)):
            model = Recogniser(lengths="inputs", reduction="none", zero_infinity=zero)
            session = Session(traced(model, TARGETS, short, TARGET_LENGTHS), Batching(), Returns())
            session.upload(dict(model.state_dict()))
            (losses,) = session.run([TARGETS, short, TARGET_LENGTHS])
            assert losses[1].item() == expected
            assert losses[0].item() > 0
