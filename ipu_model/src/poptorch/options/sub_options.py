"""The parts of `Options`: `Training`, `Precision`, `TensorLocations`, `Distributed`, `Jit` and `_Popart`."""

from __future__ import annotations

import os
from typing import Any

import torch
from typing_extensions import Self

from ipu_model.errors import require
from poptorch._impl import PARTIALS
from poptorch._logging import logger
from poptorch._options_impl import Freezable, OptionsDict, check_type
from poptorch.enums import MeanReductionStrategy, ReductionType


class _PopartOptions(Freezable):
    """Backend settings by name; keys and types are checked at compile time, not when they are set."""

    def __init__(self) -> None:
        self._is_frozen = False
        self.options: dict[str, Any] = {"instrumentWithHardwareCycleCounter": False, "rearrangeAnchorsOnHost": False}

    def set(self, key: str, value: Any) -> Self:
        """Store a value under a backend key."""
        self.checkIsFrozen()
        self.options[key] = value
        return self

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> Self:
        """Switch graph patterns on or off, starting from level 0 (none), 1 (minimal), 2 (default) or 3 (all)."""
        require(isinstance(level, int), f"The pattern level must be an int; got {level!r}.")
        require(isinstance(patterns, dict), f"patterns must be a dict of name to bool; got {patterns!r}.")
        require({*map(type, patterns)} <= {str}, f"Pattern names must be strings; got {patterns!r}.")
        require({*map(type, patterns.values())} <= {bool}, f"Patterns are on or off, a bool; got {patterns!r}.")
        return self.set("patterns", dict(patterns)).set("patterns_level", level)

    def setEngineOptions(self, engine_options: dict[str, str]) -> Self:
        """Store the options of Poplar's engine, such as `{"autoReport.all": "true"}`."""
        return self.set("engineOptions", engine_options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.options.items())})"


class _TrainingOptions(OptionsDict):
    """Options that only training uses."""

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )
        self._declare(_popart=popart_options)

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Set how many micro-batches contribute to one weight update."""
        return self.set(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set how gradients are combined over accumulations, replicas and processes: as a mean or a sum."""
        if not any(reduction_type is allowed for allowed in (ReductionType.Mean, ReductionType.Sum)):
            raise ValueError(
                "reduction_type must be set to poptorch.ReductionType.Mean or poptorch.ReductionType.Sum; "
                f"got {reduction_type!r}."
            )
        return self.set(accumulation_and_replication_reduction_type=reduction_type)

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """Set when a mean reduction divides; raise `AssertionError` for another type."""
        return self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Let the loss scale adapt itself during training, starting at the optimiser's value."""
        return self._set_backend("automaticLossScalingSettings.enabled", enabled)

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Spread convolutions that use few tiles over different tiles; replaces all convolution options."""
        return self._set_backend("convolutionOptions", {"enableConvDithering": enabled})


class _PrecisionOptions(OptionsDict):
    """Options that decide how numbers are rounded; they are stored among the backend settings."""

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__()
        self._declare(_popart=popart_options)

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Round to float16 stochastically, so that the expected value is exact; meant for training."""
        return self._set_backend("enableStochasticRounding", enabled)

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Set the accumulator type inside matmuls and convolutions; replaces all convolution options."""
        partials = next((name for known, name in PARTIALS.items() if dtype is known), None)
        if partials is None:
            raise ValueError(f"setPartialsType takes torch.float32 or torch.float16; got {dtype!r}.")
        self._popart.set("partialsTypeMatMuls", partials)
        return self._set_backend("convolutionOptions", {"partialsType": partials})

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Stop with an error on invalid operations and overflow; raise `AssertionError` for a non-bool."""
        check_type("enableFloatingPointExceptions", enabled, bool)
        return self._set_backend("enableFloatingPointChecks", enabled)

    def autocastEnabled(self, autocast_enabled: bool) -> Self:
        """Do nothing but warn: PopTorch casts nothing by itself; raise `ValueError` for a non-bool."""
        return self._ignored_switch("autocastEnabled", autocast_enabled, "cast the model or its inputs with half()")

    def halfFloatCasting(self, half_float_casting: object) -> Self:
        """Do nothing but warn: PopTorch deprecated this, mixed types follow PyTorch's promotion."""
        self.checkIsFrozen()
        ignored = "[Deprecated] Precision.halfFloatCasting has no effect (%r given): "
        logger.warning(ignored + "operations on mixed types follow PyTorch's promotion rules.", half_float_casting)
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Do nothing but warn: PopTorch deprecated this; raise `ValueError` for a non-bool."""
        facts = "running statistics keep the type their module gives them"
        return self._ignored_switch("runningStatisticsAlwaysFloat", value, facts)

    def _ignored_switch(self, name: str, value: bool, facts: str) -> Self:
        self.checkIsFrozen()
        if not isinstance(value, bool):
            raise ValueError(f"{name} takes a bool; got {value!r}.")
        logger.warning("[Deprecated] Precision.%s has no effect: %s.", name, facts)
        return self


class TensorLocationSettings(OptionsDict):
    """Where the tensors of one category live; a key that was never set leaves the choice to the backend.

    Backend defaults: on chip, not sharded over replicas, off chip only from 2 elements and sharded only from
    8192 elements, moved through compute tiles. Setters raise `AssertionError` for other types.

        options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    """

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Keep the tensors on chip or in streaming memory; `None` leaves it to the backend again."""
        require(use is None or isinstance(use, bool), f"useOnChipStorage takes a bool or None; got {use!r}.")
        if use is not None:
            return self.createOrSet(onChip=int(use))
        self.deleteIfExists("onChip")
        return self

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Split each tensor over the replicas."""
        return self._store("useReplicatedTensorSharding", use, bool)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Load the tensors through I/O tiles."""
        return self._store("useIOTilesToLoad", use, bool)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Store the tensors through I/O tiles."""
        return self._store("useIOTilesToStore", use, bool)

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Keep tensors of fewer elements on chip."""
        return self._store("minElementsForOffChip", min_elements, int)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Do not shard tensors of fewer elements."""
        return self._store("minElementsForReplicatedTensorSharding", min_elements, int)

    def _store(self, key: str, value: int, kind: type) -> Self:
        check_type(key, value, kind)
        require(value >= 0, f"{key} must not be negative; got {value}.")
        return self.createOrSet(**{key: int(value) if kind is bool else value})


class _TensorLocationOptions(OptionsDict):
    """Memory placement of four categories of tensors, and the tiles set aside for I/O.

    Places are copied as they are now. Setters raise `AssertionError` for other types.
    """

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Place activations."""
        return self._place("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Place weights."""
        return self._place("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Place optimiser state."""
        return self._place("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Place gradient accumulators."""
        return self._place("location_accumulator", location)

    def numIOTiles(self, num_tiles: int) -> Self:
        """Set aside tiles of each IPU for I/O; raise `AssertionError` unless even and from 32 to 192."""
        check_type("numIOTiles", num_tiles, int)
        message = f"numIOTiles must be an even number between 32 and 192. Got {num_tiles}."
        require(num_tiles in range(32, 193, 2), message)
        return self.createOrSet(numIOTiles=num_tiles)

    def _place(self, key: str, location: TensorLocationSettings) -> Self:
        check_type(key, location, TensorLocationSettings)
        return self.createOrSet(**{key: location.toDict()})


class _DistributedOptions(OptionsDict):
    """Process count and rank; Open MPI's variables are read at construction."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> Self:
        """Become process 0 of 1, whatever the environment says."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read process count (default 1) and rank (default 0) from these variables now."""
        numbers = []
        for name, usual in ((var_process_id, "0"), (var_num_processes, "1")):
            text = os.environ.get(name, usual)
            if not text.strip().isdecimal():
                raise ValueError(f"The environment variable {name} must be a whole number, not {text!r}.")
            numbers.append(int(text))
        return self.configureProcessId(*numbers)

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Set rank and process count; raise `AssertionError` for a non-int."""
        return self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)

    @property
    def processId(self) -> int:
        """Rank of this process, from 0."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """Number of processes of the program."""
        return int(self.num_distributed_processes)


class _JitOptions(OptionsDict):
    """Deprecated options; none is stored."""

    def traceModel(self, trace_model: bool) -> Self:
        """Warn, and raise `ValueError` for a true value: the old front end is gone."""
        self.checkIsFrozen()
        logger.warning("[Deprecated] Jit.traceModel has no effect: the dispatcher is the only way to trace a model.")
        if trace_model:
            raise ValueError(
                "Tracing with torch.jit.trace is no longer supported. Remove Jit.traceModel: "
                "models are always captured while their forward runs."
            )
        return self
