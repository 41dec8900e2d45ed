"""Optimisers of every kind for the tests, and a listener for PopTorch's log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from poptorch import optim

MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda params, **given: optim.SGD(params, **{"lr": 0.1, **given}),
    "Adam": optim.Adam,
    "AdamW": optim.AdamW,
    "RMSprop": optim.RMSprop,
    "LAMB": optim.LAMB,
}


def parameter(value: float = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(value))


@contextmanager
def log_lines(level: int = logging.WARNING) -> Iterator[list[str]]:
    """Collect what is logged to `poptorch::python` at exactly `level`, message by message."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == level:
                lines.append(record.getMessage())

    logger = logging.getLogger("poptorch::python")
    before, listener = logger.level, Listener()
    logger.setLevel(min(level, logging.WARNING))
    logger.addHandler(listener)
    try:
        yield lines
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before)
