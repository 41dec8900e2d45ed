"""Compilation time: a line through published compilations, 20 s for each IPU and 4.3 s for each layer with weights."""

from __future__ import annotations

import pytest
import torch
from cost_support import SETTINGS, Trained
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.capture.describe import step_of
from ipu_model.predict import compilation_seconds
from ipu_model.predict.costs import costs_of
from ipu_model.predict.program import Program
from published.building import begin_block


class Attention(nn.Module):
    """Four linear layers and the two products of attention, which are no layers."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.query(x) @ self.key(x).transpose(1, 2)).softmax(-1)
        return self.out(scores @ self.value(x))


def layers(*, freezes: bool = False, ipus: int = 1) -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model[0].requires_grad_(not freezes)
    if ipus == 2:
        begin_block(model[1], 1)
    return model


@pytest.mark.parametrize(
    ("model", "training", "seconds"),
    [
        (Attention(), True, 20 + 4 * 4.3),
        (layers(freezes=True), True, 20 + 2 * 4.3),
        (layers(ipus=2), True, 2 * 20 + 2 * 4.3),
        (layers(), False, 0.385 * (20 + 2 * 4.3)),  # 35 s of 91 s, as published for the MNIST tutorial
    ],
)
def test_ipus_and_layers_with_weights_count(model: nn.Module, training: bool, seconds: float) -> None:
    graph = traced(Trained(model) if training else model.eval(), torch.zeros(2, 8, 16), training=training)
    program = Program(step_of(graph), training)
    assert compilation_seconds(program, costs_of(program.step, SETTINGS)) == pytest.approx(seconds)
