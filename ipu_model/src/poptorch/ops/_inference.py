"""Refuses, in training models, the operators that the device has for inference only."""

from __future__ import annotations

from ipu_model import tracing
from poptorch._impl import createPoptorchError

_REMEDY = (
    "In a training model write the loop in Python and select values with torch.where, torch.gather or torch.scatter."
)


def refuse_training(name: str, remedy: str = _REMEDY) -> None:
    """Raise `poptorch.Error` if a training model is being traced; `name` is what the program called."""
    trace = tracing.current()
    if trace is not None and trace.training:
        raise createPoptorchError(f"{name} is only supported in inference. {remedy}")
