"""CTC loss as an op of the graph: the numbers of PyTorch's own, with lengths that are constants or inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.batching import Batching, Returns
from ipu_model.compute.session import Session

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


@pytest.mark.parametrize("lengths", ["tuples", "inputs"])
@pytest.mark.parametrize("settings", [
    {}, {"reduction": "sum"}, {"reduction": "none"}, {"blank": 5}, {"zero_infinity": True},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
def test_loss_and_gradient_are_pytorchs(lengths: str, settings: dict[str, object], integer: torch.dtype) -> None:
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


def test_lengths_may_differ_from_call_to_call() -> None:
    model = Recogniser(lengths="inputs", reduction="none")
    graph = traced(model, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS, training=False)
    session = Session(graph, Batching(), Returns())
    session.upload(dict(model.state_dict()))
    for lengths in (TARGET_LENGTHS, torch.tensor([1, 2, 1])):
        (losses,) = session.run([TARGETS, INPUT_LENGTHS, lengths])
        torch.testing.assert_close(losses, model(TARGETS, INPUT_LENGTHS, lengths).detach())


def test_impossible_targets_give_infinity_or_zero_as_asked() -> None:
    """Four labels do not fit into two time steps."""
    short = torch.tensor([9, 2, 8])
    for zero, expected in ((False, float("inf")), (True, 0.0)):
        model = Recogniser(lengths="inputs", reduction="none", zero_infinity=zero)
        session = Session(traced(model, TARGETS, short, TARGET_LENGTHS), Batching(), Returns())
        session.upload(dict(model.state_dict()))
        (losses,) = session.run([TARGETS, short, TARGET_LENGTHS])
        assert losses[1].item() == expected
        assert losses[0].item() > 0
