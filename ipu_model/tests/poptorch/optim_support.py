"""PopTorch's optimisers for the tests of them, and a listener for PopTorch's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from poptorch import optim

MAKERS: dict[str, Any] = {
    "SGD": lambda params, **given: optim.SGD(params, **{"lr": 0.1, **given}),
    **{name: getattr(optim, name) for name in ("Adam", "AdamW", "RMSprop", "LAMB")},
}


def parameter(value: float = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(value))


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """Collect the warnings of `poptorch::python`, where properties cannot use pytest's `caplog`."""
    lines: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("poptorch::python")
    logger.addHandler(listener)
    try:
        yield lines
    finally:
        logger.removeHandler(listener)
