"""Modules that are built in unusual ways: without data at first, or nested deeply."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from executor_support import Module, Net, X, Y, inference, quiet, training
from torch import Tensor, nn

import poptorch


def on_meta(make: Any) -> nn.Module:
    with torch.device("meta"):
        module: nn.Module = make()
    return module


class TestMeta:
    def test_filled_in_place_it_trains_like_any_other(self) -> None:
        model, plain = on_meta(Net), Net()
        model.to_empty(device="cpu").load_state_dict(plain.state_dict())
        expected = [t.tolist() for t in training(plain)(X, Y)]
        assert [t.tolist() for t in training(model)(X, Y)] == expected

    def test_filled_by_assignment_also_after_it_was_wrapped(self) -> None:
        model, plain = on_meta(Net), Net()
        executor = inference(model)
        model.load_state_dict(plain.state_dict(), assign=True)
        assert torch.equal(executor(X), inference(plain)(X))

    @pytest.mark.parametrize("wrap", [training, inference])
    def test_without_data_it_is_refused_by_name(self, wrap: Any) -> None:
        model = on_meta(Net)
        executor = wrap(model)
        with pytest.raises(poptorch.Error, match=r"'first.weight' is on the device 'meta'.*to_empty.*assign=True"):
            executor(X, Y)
        model.to_empty(device="cpu")
        wrap(model)(X, Y)

    def test_so_is_a_constant_without_data(self) -> None:
        with pytest.raises(poptorch.Error, match=r"shape \[3\].*on the device 'meta'"):
            inference(Module(lambda model, x: x + model.shift, shift=torch.ones(3, device="meta")))(X)

    def test_offline_compilation_needs_no_data(self) -> None:
        options = quiet().connectionType(poptorch.ConnectionType.Never)
        executor = inference(on_meta(Net), options)
        executor.compile(X)
        assert "first.weight" in executor.getTensorNames()


class Nested(nn.Module):
    """`depth` modules, each in the one before; every one adds 1."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Nested(depth - 1) if depth > 1 else nn.Identity()
        self.shift = nn.Parameter(torch.zeros(1)) if depth == 1 else 0

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1 + self.shift


class TestDeepNesting:
    """Plain PyTorch calls about 320 nested modules before Python refuses; hooks would leave room for 240."""

    def test_inference_and_training(self) -> None:
        before = sys.getrecursionlimit()
        assert inference(Nested(300))(torch.zeros(2)).tolist() == [300, 300]

        trains = Module(lambda model, x: poptorch.identity_loss(model.body(x), "sum"), body=Nested(300))
        assert training(trains)(torch.zeros(2)).item() == 600
        assert sys.getrecursionlimit() == before

    def test_printing(self) -> None:
        assert repr(inference(Nested(300))).count("Nested(") == 300
