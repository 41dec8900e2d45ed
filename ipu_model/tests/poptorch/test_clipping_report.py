"""The environment variable that names the first op whose half-precision results were clipped."""

from __future__ import annotations

import logging

import pytest
import torch
from executor_support import quiet
from torch import Tensor, nn

import poptorch


class Energy(nn.Module):
    """The sum of squares."""

    def forward(self, x: Tensor) -> Tensor:
        squares = x * x
        return squares.sum()


LARGE = torch.tensor([300.0, 1.0], dtype=torch.float16)  # 300 * 300 is beyond 65504


def warnings(caplog: pytest.LogCaptureFixture, value: str | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    if value is not None:
        monkeypatch.setenv("IPU_MODEL_REPORT_CLIPPING", value)
    with caplog.at_level(logging.WARNING, logger="ipu_model"):
        assert poptorch.inferenceModel(Energy(), quiet())(LARGE).item() == 65504.0
    return [record.getMessage() for record in caplog.records if record.name.startswith("ipu_model")]


def test_it_names_op_and_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = warnings(caplog, "1", monkeypatch)
    assert "clipped to +-65504: 1 of 2 values (aten.mul.Tensor" in message
    assert "of forward in test_clipping_report.py: squares = x * x)" in message


@pytest.mark.parametrize("value", [None, "", "0"])
def test_without_it_nothing_is_logged(
    value: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warnings(caplog, value, monkeypatch) == []
