"""`poptorch.options`: every option object, and the strategies that `setExecutionStrategy` takes."""

# ruff: noqa: F403, F405  # strategies says itself which names it offers
from poptorch._options_config import ConfigFileError
from poptorch.ops.annotations import Attribute
from poptorch.options.backend import validate_options
from poptorch.options.options import Options, log_options
from poptorch.options.strategies import *
from poptorch.options.strategies import _IExecutionStrategy, _IPhasedExecution
from poptorch.options.sub_options import (
    TensorLocationSettings,
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)

BlockId = str

__all__ = [
    "Attribute", "AutoStage", "BlockId", "ConfigFileError", "Options", "ParallelPhasedExecution", "Phase",
    "PipelinedExecution", "SerialPhasedExecution", "ShardedExecution", "Stage", "TensorLocationSettings",
    "_DistributedOptions", "_IExecutionStrategy", "_IPhasedExecution", "_JitOptions", "_PopartOptions",
    "_PrecisionOptions", "_TensorLocationOptions", "_TrainingOptions", "log_options", "validate_options",
]  # fmt: skip
