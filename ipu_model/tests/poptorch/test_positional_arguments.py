"""Calls with positional arguments, as PopTorch programs write them, mean what the same calls mean by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_support import quiet
from torch import Tensor, nn

import poptorch

ROWS = torch.arange(24.0).reshape(12, 2)


class Applied(nn.Module):
    """Applies a function to its input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def on_device(function: Callable[..., Any], *inputs: Tensor) -> Any:
    return poptorch.inferenceModel(Applied(function), quiet())(*inputs)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return all(equal(a, b) for a, b in zip(one, other, strict=True))


POINTS, CENTRES = torch.tensor([[0.0], [4.0], [9.0]]), torch.tensor([[3.0], [8.0]])
PROBABILITIES = torch.randn(5, 1, 3, generator=torch.Generator().manual_seed(0)).log_softmax(2)
LENGTHS = torch.tensor([5], dtype=torch.int32)


@pytest.mark.parametrize(
    ("positional", "named", "inputs"),
    [
        (
            lambda x, at: poptorch.dynamic_slice(x, 0, at, 3, 1),
            lambda x, at: poptorch.dynamic_slice(tensor=x, dim=0, start=at, size=3, step=1),
            (ROWS, torch.tensor([4])),
        ),
        (
            lambda x, part, at: poptorch.dynamic_update(x, part, 0, at, 2),
            lambda x, part, at: poptorch.dynamic_update(input=x, src=part, dim=0, start=at, size=2),
            (ROWS, torch.zeros(2, 2), torch.tensor([4])),
        ),
        (
            lambda x, y: poptorch.serializedMatMul(x, y, poptorch.MatMulSerializationMode.OutputChannels, 2),
            lambda x, y: poptorch.serializedMatMul(
                lhs=x, rhs=y, mode=poptorch.MatMulSerializationMode.OutputChannels, factor=2
            ),
            (ROWS, torch.ones(2, 4)),
        ),
        (
            lambda p, n: poptorch.ctc_beam_search_decoder(p, n, 1, 8, 2),
            lambda p, n: poptorch.ctc_beam_search_decoder(probs=p, lengths=n, blank=1, beam_width=8, top_paths=2),
            (PROBABILITIES, LENGTHS),
        ),
        (
            lambda x, y: poptorch.nearest(x, y, [0, 0, 1], [0, 1]),
            lambda x, y: poptorch.nearest(x=x, y=y, batch_x=[0, 0, 1], batch_y=[0, 1]),
            (POINTS, CENTRES),
        ),
        (
            lambda x: poptorch.fps(x, [0, 2, 3], 0.5, False),
            lambda x: poptorch.fps(src=x, ptr=[0, 2, 3], ratio=0.5, random_start=False),
            (POINTS,),
        ),
        (
            lambda x: poptorch.for_loop(3, lambda y: [y * 2], [x])[0],
            lambda x: poptorch.for_loop(count=3, body=lambda y: [y * 2], inputs=[x])[0],
            (ROWS,),
        ),
    ],
    ids=["dynamic_slice", "dynamic_update", "serializedMatMul", "beam search", "nearest", "fps", "for_loop"],
)  # fmt: skip
def test_ops(positional: Callable[..., Any], named: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
    assert equal(on_device(positional, *inputs), on_device(named, *inputs))


def test_a_block_takes_its_name_and_then_its_ipu() -> None:
    class TwoBlocks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with poptorch.Block("first", 0):
                x = x + 1
            with poptorch.Block("second", 1):
                return x * 2

    options = quiet().deviceIterations(3)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    assert torch.equal(poptorch.inferenceModel(TwoBlocks(), options)(ROWS), 2 * (ROWS + 1))


def test_begin_block_takes_the_layer_its_name_and_its_ipu() -> None:
    model = nn.Sequential(nn.Linear(2, 2), poptorch.BeginBlock(nn.Linear(2, 2), "second", 1))
    out = poptorch.inferenceModel(model, quiet().deviceIterations(3))(ROWS)
    with torch.no_grad():
        assert torch.allclose(out, model(ROWS), atol=1e-6)


def test_a_loader_takes_options_data_set_batch_size_shuffle_workers_and_drop_last() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(7))
    loader = poptorch.DataLoader(quiet(), data, 2, False, 0, False)
    assert [len(item[0]) for item in loader] == [2, 2, 2, 1]


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        ((poptorch.optim.SGD, 0.5, 0.9, 0.1, 0.01, False), {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
        ((poptorch.optim.Adam, 0.5, (0.8, 0.9), 1e-3, 0.01), {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.01}),
        ((poptorch.optim.AdamW, 0.5, (0.8, 0.9), 1e-3, 0.1), {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
        ((poptorch.optim.RMSprop, 0.5, 0.8, 1e-3, 0.01), {"alpha": 0.8, "eps": 1e-3, "weight_decay": 0.01}),
    ],
    ids=["SGD", "Adam", "AdamW", "RMSprop"],
)
def test_optimisers_take_torchs_arguments_in_torchs_order(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    """What PopTorch adds, such as the loss scaling, comes after them."""
    kind, *arguments = positional
    one = kind([nn.Parameter(torch.ones(1))], *arguments)
    other = kind([nn.Parameter(torch.ones(1))], lr=0.5, **named)
    assert {k: v for k, v in one.param_groups[0].items() if k != "params"} == {
        k: v for k, v in other.param_groups[0].items() if k != "params"
    }
    assert one.loss_scaling == other.loss_scaling == 1.0


def test_locations_and_options_take_their_values() -> None:
    options = quiet()
    options.outputMode(poptorch.OutputMode.EveryN, 2).deviceIterations(4)
    assert torch.equal(poptorch.inferenceModel(nn.Identity(), options)(ROWS), torch.cat([ROWS[3:6], ROWS[9:12]]))
