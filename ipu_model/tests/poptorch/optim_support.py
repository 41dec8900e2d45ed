"""PopTorch's optimisers for the tests of them."""

from __future__ import annotations

from typing import Any

import torch

from poptorch import optim

MAKERS: dict[str, Any] = {
    "SGD": lambda params, **given: optim.SGD(params, **{"lr": 0.1, **given}),
    **{name: getattr(optim, name) for name in ("Adam", "AdamW", "RMSprop", "LAMB")},
}


def parameter(value: float = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(value))
