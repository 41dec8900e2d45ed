"""PopTorch's optimisers: PyTorch's, plus loss scaling, accumulator types and gradient clipping on the device.

The executor reads their numbers and runs a built-in update of the same family; it never calls `step()`. On
the CPU each class is an ordinary PyTorch optimiser.
"""

from poptorch.optim.lamb import LAMB
from poptorch.optim.optimizer import Optimizer, VariableAttributes
from poptorch.optim.torch_optimizers import SGD, Adam, AdamW, RMSprop

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
