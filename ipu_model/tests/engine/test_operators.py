"""Which functions of PyTorch the compiler of PopTorch 3.4 takes, by its list of handlers (operators reference)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from net_support import Net, traced
from torch import Tensor

import poptorch
from ipu_model.capture.operators import table

EXAMPLES = msgspec.toml.decode(Path(__file__).with_name("operator_examples.toml").read_bytes(), type=dict[str, str])
NAMES = ["x", "y", "m", "v", "p", "i", "k", "b"]


def values() -> list[Tensor]:
    torch.manual_seed(0)
    x, y, m = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(4, 4)
    v, p = torch.tensor([0.1, 0.2, 0.3, 0.4]), 0.1 + 0.8 * torch.rand(2, 3, 4)
    return [x, y, m, v, p, torch.tensor([0, 2, 1]), torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1]]), x > 0]


def evaluated(expression: str, names: Sequence[str] = NAMES) -> Callable[..., Any]:
    """Return the function of the values of these names that an expression is."""
    code, known = compile(expression, "a line", "eval"), {"torch": torch, "F": F, "poptorch": poptorch}
    return lambda *inputs: eval(code, {**known, **dict(zip(names, inputs))})


def refused_ops(expression: str) -> set[str]:
    function = evaluated(expression)
    found = traced(Net(lambda net, *inputs: function(*inputs)), *values(), training=False).unsupported
    return {name.removeprefix("aten::") for name in found}


def lines(*kinds: str) -> list[str]:
    return [line for kind in kinds for line in EXAMPLES[kind].splitlines() if line]


def expressions(*kinds: str) -> list[str]:
    return [part for line in lines(*kinds) for part in line.split(" | ")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", expressions("differentiable", "computed", "drawn", "untrained"))
def test_what_poptorch_compiles_is_not_refused(expression: str) -> None:
    assert refused_ops(expression) == set()


@pytest.mark.parametrize("example", expressions("refused", "refused_estimated", "refused_drawing"))
def test_what_has_no_handler_is_found_by_its_name(example: str) -> None:
    expression, _, name = example.rpartition(" -> ")
    assert name in refused_ops(expression)


def test_no_op_is_both_compiled_and_refused() -> None:
    lists = table()
    assert not set(lists.instead) & set(f"{lists.handlers} {lists.taken_apart} {lists.newer}".split())
