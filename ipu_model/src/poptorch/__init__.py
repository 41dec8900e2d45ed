"""PopTorch for any CPU: PopTorch's public API on the IPU Model.

`ipu_model` executes and models programs; this package holds PopTorch's names, rules and errors.
"""

# ruff: noqa: F403  # enums, ops and strategies say themselves which names they offer
import torch  # noqa: F401  # PopTorch programs write poptorch.torch

from ipu_model.errors import Error, RecoverableError, UnrecoverableError
from poptorch import enums, ops, optim, options, poptorch_core, profiling, testing
from poptorch._backend.models import inferenceModel, load, trainingModel
from poptorch._backend.torch_ops import register as _register_ops
from poptorch._dataloader import AsynchronousDataAccessor, DataLoader, _SubDataset  # noqa: F401  # a name of PopTorch's
from poptorch._impl import createPoptorchError
from poptorch._logging import logger, setLogLevel
from poptorch._poplar_executor import PoplarExecutor, registerPostCompileHook, registerPreCompileHook
from poptorch._poptorch_data import VERSION as _VERSION
from poptorch._printing import module_repr, print
from poptorch._utils import (
    ICustomArgParser,
    accessAttributes,
    getIpuTensorId,
    isOnIpu,
    registerCustomArgParser,
    registerGeometricCustomArgParsers,
)
from poptorch.enums import *
from poptorch.ops import *
from poptorch.options import ConfigFileError, Options, TensorLocationSettings
from poptorch.options.strategies import *
from poptorch.poptorch_core import (
    importPoptorchMetadataFromFile,
    ipuHardwareIsAvailable,
    ipuHardwareVersion,
    poptorchAtExit,
)

__version__ = _VERSION

_register_ops()

# PopTorch has no module of this name: it can be imported, and is no attribute of the package.
globals().pop("_backend")

__all__ = [
    "AsynchronousDataAccessor", "ConfigFileError", "DataLoader", "Error", "ICustomArgParser", "Options",
    "PoplarExecutor", "RecoverableError", "TensorLocationSettings", "UnrecoverableError", "accessAttributes",
    "createPoptorchError", "enums", "getIpuTensorId", "importPoptorchMetadataFromFile", "inferenceModel",
    "ipuHardwareIsAvailable", "ipuHardwareVersion", "isOnIpu", "load", "logger", "module_repr", "ops", "optim",
    "options", "poptorchAtExit", "poptorch_core", "print", "profiling", "registerCustomArgParser",
    "registerGeometricCustomArgParsers", "registerPostCompileHook", "registerPreCompileHook", "setLogLevel",
    "testing", "trainingModel",
]  # fmt: skip
__all__ += enums.__all__
__all__ += ops.__all__
__all__ += options.strategies.__all__
