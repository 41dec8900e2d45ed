"""docs/errors.md quotes messages that the course's PopTorch really raises, each in its own section."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Callable

import pytest
import torch
from torch import Tensor, nn

import poptorch

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "errors.md").read_text(encoding="utf-8")
ONLY_ON_HARDWARE = "Only on hardware"
ROWS = torch.zeros(4, 8)


class Classifier(nn.Module):
    """Rows [N, 8] to 4 values each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows)


class ChoosingRows(Classifier):
    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows)[rows[:, 0] > 0]


class Branching(Classifier):
    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows) if rows.sum() > 0 else rows


class Inverting(Classifier):
    def forward(self, rows: Tensor) -> Tensor:
        return torch.linalg.inv(rows @ rows.T)


class Repeating(nn.Module):
    """A tensor of 4 x ``count`` bytes for the one row: a tile of one IPU holds its share of three of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, row: Tensor) -> Tensor:
        return torch.relu(row.expand(self.count) + 1).sum()


def quiet() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def infer(network: nn.Module, options: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    return poptorch.inferenceModel(network, options or quiet())


def train_without_loss() -> None:
    network = Classifier()
    poptorch.trainingModel(network, quiet(), poptorch.optim.SGD(network.parameters(), lr=0.1))(ROWS)


def call_with_another_shape() -> None:
    model = infer(Classifier())
    model(ROWS)
    model(torch.zeros(6, 8))


RAISING: dict[str, Callable[[], object]] = {
    "Does not fit": lambda: infer(Repeating(2**28)).compile(torch.zeros(1)),
    "Arguments of another shape": call_with_another_shape,
    "A batch that cannot be divided": lambda: infer(Classifier(), quiet().deviceIterations(4))(torch.zeros(6, 8)),
    "Too many IPUs": lambda: infer(Classifier(), quiet().replicationFactor(100))(torch.zeros(400, 8)),
    "A shape that depends on data": lambda: infer(ChoosingRows())(ROWS),
    "A branch that depends on data": lambda: infer(Branching())(ROWS),
    "An op that PopTorch does not have": lambda: infer(Inverting())(ROWS),
    "No loss": train_without_loss,
    "A program without IPUs": lambda: infer(Classifier(), quiet().useOfflineIpuTarget())(ROWS),
}


def quoted(section: str) -> str:
    """Return the part of a message that a section of the page begins with."""
    found = re.search(rf"^## {re.escape(section)}\n\n> (.+)$", PAGE, re.MULTILINE)
    assert found is not None, section
    return found[1]


@pytest.mark.parametrize("section", RAISING)
def test_a_quoted_message_is_raised(section: str) -> None:
    with pytest.raises((poptorch.Error, AssertionError)) as refusal:
        RAISING[section]()
    assert quoted(section) in str(refusal.value)
    assert re.findall("The section '(.+?)' of the course's docs/errors.md", str(refusal.value)) in ([], [section])


def test_the_quoted_warning_of_a_close_call_is_given(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        infer(Repeating(close_count())).compile(torch.zeros(1))
    assert quoted("Too close to call") in caplog.text
    assert "The section 'Too close to call' of the course's docs/errors.md" in caplog.text


def close_count() -> int:
    """Return a size at which the model cannot tell whether the program fits, found by halving an interval."""
    import ipu_model

    few, many = 2**20, 2**28
    while True:
        count = (few + many) // 2
        verdict = str(ipu_model.profile_module(Repeating(count), (torch.zeros(1),), quiet(), micro_batch=True).verdict)
        if verdict == "too close to call":
            return count
        few, many = (count, many) if verdict == "fits" else (few, count)


def test_every_section_has_its_message() -> None:
    sections = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert sorted(sections) == sorted([*RAISING, "Too close to call", ONLY_ON_HARDWARE])
