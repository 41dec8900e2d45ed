"""PopTorch's optimisers: PyTorch's, plus loss scaling, accumulator types and gradient clipping on the device.

The executor reads their numbers and runs a built-in update of the same family; it never calls `step()`. On
the CPU each class is an ordinary PyTorch optimiser.
"""

from __future__ import annotations

from poptorch.optim.adam import Adam, AdamW
from poptorch.optim.lamb import LAMB
from poptorch.optim.optimizer import Optimizer
from poptorch.optim.rmsprop import RMSprop
from poptorch.optim.sgd import SGD
from poptorch.optim.variable_attributes import VariableAttributes

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
