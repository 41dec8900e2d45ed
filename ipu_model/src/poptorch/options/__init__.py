"""`poptorch.options`: every option object, and the strategies that `setExecutionStrategy` takes."""

from __future__ import annotations

from poptorch.options.config_file import ConfigFileError
from poptorch.options.handover import log_options, validate_options
from poptorch.options.options import Options
from poptorch.options.strategies import (
    AutoStage,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from poptorch.options.sub_options import (
    TensorLocationSettings,
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)

__all__ = [
    "AutoStage",
    "ConfigFileError",
    "Options",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
    "_DistributedOptions",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
    "log_options",
    "validate_options",
]
