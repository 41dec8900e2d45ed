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
    """Four linear layers and the two products of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.query(x) @ self.key(x).transpose(1, 2)).softmax(-1)
        found: Tensor = self.out(scores @ self.value(x))
        return found


def seconds(model: nn.Module, *, training: bool = True) -> float:
    graph = traced(Trained(model) if training else model.eval(), torch.zeros(2, 8, 16), training=training)
    program = Program(step_of(graph), training)
    return compilation_seconds(program, costs_of(program.step, SETTINGS))


def test_products_of_attention_are_no_layers() -> None:
    assert seconds(Attention()) == pytest.approx(20 + 4 * 4.3)


def test_frozen_layers_count() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model[0].requires_grad_(False)
    assert seconds(model) == pytest.approx(20 + 2 * 4.3)


def test_each_ipu_of_a_replica_counts() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    begin_block(model[1], 1)
    assert seconds(model) == pytest.approx(2 * 20 + 2 * 4.3)


def test_inference_takes_a_part_of_it() -> None:
    """35 s of 91 s, as published for the MNIST tutorial."""
    assert seconds(nn.Linear(16, 16), training=False) == pytest.approx(0.385 * (20 + 4.3))
