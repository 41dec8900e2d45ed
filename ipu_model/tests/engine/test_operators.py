"""Which functions of PyTorch the compiler of PopTorch 3.4 takes, by its list of handlers (operators reference)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from net_support import Net, traced
from torch import Tensor, nn

import poptorch
from ipu_model.capture.operators import table

EXAMPLES = msgspec.toml.decode(Path(__file__).with_name("operator_examples.toml").read_bytes(), type=dict[str, str])
NAMES = ["x", "y", "m", "v", "p", "i", "k", "b"]


def values() -> list[Tensor]:
    torch.manual_seed(0)
    x, y, m = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(4, 4)
    v, p = torch.tensor([0.1, 0.2, 0.3, 0.4]), 0.1 + 0.8 * torch.rand(2, 3, 4)
    return [x, y, m, v, p, torch.tensor([0, 2, 1]), torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1]]), x > 0]


def model_of(expression: str) -> Net:
    code = compile(expression, "a line", "eval")
    known = {"torch": torch, "F": F, "poptorch": poptorch}
    return Net(lambda net, *inputs: eval(code, {**known, **dict(zip(NAMES, inputs))}))


def refused_ops(model: nn.Module, *inputs: Tensor, training: bool = False) -> set[str]:
    found = traced(model, *inputs, training=training).unsupported
    return {name.removeprefix("aten::") for name in found}


def expressions(kind: str) -> list[str]:
    return [part for line in EXAMPLES[kind].splitlines() for part in line.split(" | ") if part]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", expressions("compiled"))
def test_what_poptorch_compiles_is_not_refused(expression: str) -> None:
    assert refused_ops(model_of(expression), *values()) == set()


@pytest.mark.parametrize("line", expressions("refused"))
def test_what_has_no_handler_is_found_by_its_name(line: str) -> None:
    expression, _, name = line.rpartition(" -> ")
    assert name in refused_ops(model_of(expression), *values())


def attention(**options: Any) -> Net:
    inner = nn.MultiheadAttention(8, 2, batch_first=True)
    return Net(lambda net, x: net.inner(x, x, x, **options)[0], inner=inner)


LAYERS = [
    nn.LSTM(8, 6, 2, bidirectional=True), nn.GRU(8, 6), nn.RNN(8, 6), nn.LSTM(8, 6, proj_size=3), attention(),
    attention(need_weights=False), nn.BatchNorm1d(5), nn.GroupNorm(1, 5),
    nn.InstanceNorm1d(5, affine=True, track_running_stats=True), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    nn.utils.weight_norm(nn.Linear(8, 8)), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Softsign(),
    nn.Conv1d(5, 5, 3, padding=1, padding_mode="reflect"), nn.ConvTranspose1d(5, 2, 3), nn.Bilinear(8, 8, 3),
    nn.RReLU(), nn.PReLU(), nn.Dropout(), nn.Upsample(scale_factor=2), nn.Softmax(1),
    nn.Sequential(nn.Flatten(), nn.Linear(40, 3)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_layers_are_not_refused_in_training(layer: nn.Module) -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        out = net.layer(x, x) if isinstance(layer, nn.Bilinear) else net.layer(x)
        return poptorch.identity_loss(out[0] if isinstance(out, tuple) else out, "sum")

    assert refused_ops(Net(forward, layer=layer), torch.randn(2, 5, 8), training=True) == set()


def test_no_op_is_both_compiled_and_refused() -> None:
    lists = table()
    assert not set(lists.instead) & set(f"{lists.handlers} {lists.taken_apart} {lists.newer}".split())
