"""`poptorch.options`: every option object, and the strategies that `setExecutionStrategy` takes."""

from __future__ import annotations

from poptorch.options.applied import log_options
from poptorch.options.distributed import _DistributedOptions
from poptorch.options.jit import _JitOptions
from poptorch.options.popart import _PopartOptions
from poptorch.options.popart_keys import validate_options
from poptorch.options.precision import _PrecisionOptions
from poptorch.options.strategies import (
    AutoStage,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from poptorch.options.tensor_locations import TensorLocationSettings, _TensorLocationOptions
from poptorch.options.text import ConfigFileError
from poptorch.options.top_level import Options
from poptorch.options.training import _TrainingOptions

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
