"""What the tests of PopTorch's companion packages share: whether these are installed, and networks to try them with."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn


def need(*packages: str) -> None:
    """Skip the calling module without these packages, or fail where `make companions` promises them.

    Lightning and optimum-graphcore ask for IPU hardware while they are imported.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        reason = f"not installed: {', '.join(missing)} (make companions runs these tests in an environment that has it)"
        if os.environ.get("IPU_MODEL_COMPANIONS"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason, allow_module_level=True)
    os.environ.setdefault("IPU_MODEL_AS_HARDWARE", "1")


def seeded(make: Callable[[], nn.Module]) -> Any:
    """Make a network with the same weights each time."""
    torch.manual_seed(1)
    return make()


class Computes(nn.Module):
    """Computes `result(network, *inputs)` with a network."""

    def __init__(self, result: Callable[..., Any], network: nn.Module | None = None) -> None:
        super().__init__()
        self.result, self.network = result, network

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.result(self.network, *inputs, **named)
