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


def trains(function: Callable[[Tensor], Tensor]) -> Any:
    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = model.layer(x)
        out = function(rows[:0])
        return out, poptorch.identity_loss(out.sum() + rows.sum(), "sum")

    return Module(forward, layer=nn.Linear(2, 2, bias=False))


def resized(rows: Tensor, dimensions: int, mode: str) -> Tensor:
    return F.interpolate(rows.reshape(0, 2, *(1,) * dimensions), scale_factor=2, mode=mode)


INTERPOLATIONS = {
    f"{mode}, {dimensions} d": (lambda rows, m=mode, d=dimensions: resized(rows, d, m))
    for dimensions, modes in ((1, ("nearest", "linear")), (2, ("nearest", "nearest-exact", "bilinear", "bicubic")),
                              (3, ("nearest", "trilinear")))
    for mode in modes
}  # fmt: skip
OPS: dict[str, Callable[[Tensor], Tensor]] = {
    **INTERPOLATIONS,
    **{f"{loss.__name__}, {reduction}": (lambda rows, f=loss, r=reduction: f(rows, rows.detach(), reduction=r))
       for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss) for reduction in ("sum", "mean", "none")},
    "conv": lambda rows: F.conv2d(rows.reshape(0, 2, 1, 1), torch.ones(3, 2, 1, 1)),
    "linear": lambda rows: F.linear(rows, torch.ones(3, 2)), "cat": lambda rows: torch.cat([rows, rows]),
    "softmax": lambda rows: F.softmax(rows, 1), "maximum": lambda rows: rows.max(1)[0]
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_a_step_is_that_of_pytorch(name: str) -> None:
    """What is empty adds nothing to the gradient, which is then that of the sum of all outputs.

    The mean of nothing is NaN.
    """
    model = trains(OPS[name])
    before = model.layer.weight.detach().clone()
    expected = OPS[name](torch.zeros(0, 2))
    executor = training(model, lr=1.0)
    out, _ = executor(X)
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected, equal_nan=True)
    torch.testing.assert_close(before - model.layer.weight.detach(), X.sum(0).expand(2, 2))
