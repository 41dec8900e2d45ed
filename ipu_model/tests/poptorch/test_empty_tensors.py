"""Tensors without elements inside a program: they have the shapes, values and gradients that they have in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import Module, training
from torch import Tensor, nn

import poptorch

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
# Of each number of dimensions.
RESIZES = [["nearest", "linear"], ["nearest", "nearest-exact", "bilinear", "bicubic"], ["nearest", "trilinear"]]
OPS: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"{mode}, {n} d": (lambda rows, m=mode, n=n: F.interpolate(rows.reshape(0, 2, *[1] * n), scale_factor=2, mode=m))
       for n, modes in enumerate(RESIZES, start=1) for mode in modes},
    **{f"{loss.__name__}, {reduction}": (lambda rows, f=loss, r=reduction: f(rows, rows.detach(), reduction=r))
       for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss) for reduction in ("sum", "mean", "none")},
    "conv": lambda rows: F.conv2d(rows.reshape(0, 2, 1, 1), torch.ones(3, 2, 1, 1)),
    "linear": lambda rows: F.linear(rows, torch.ones(3, 2)), "cat": lambda rows: torch.cat([rows, rows]),
    "softmax": lambda rows: F.softmax(rows, 1), "maximum": lambda rows: rows.max(1)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_a_step_is_that_of_pytorch(name: str) -> None:
    """What is empty adds nothing to the gradient of the sum of all outputs; the mean of nothing is NaN."""

    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = model.layer(x)
        out = OPS[name](rows[:0])
        return out, poptorch.identity_loss(out.sum() + rows.sum(), "sum")

    model = Module(forward, layer=nn.Linear(2, 2, bias=False))
    before = model.layer.weight.detach().clone()
    executor = training(model, lr=1.0)
    out, _ = executor(X)
    torch.testing.assert_close(out, OPS[name](torch.zeros(0, 2)), equal_nan=True)
    torch.testing.assert_close(before - model.layer.weight.detach(), X.sum(0).expand(2, 2))
