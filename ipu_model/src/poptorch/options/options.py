"""`poptorch.Options`: all settings for compiling and running a model, and what a compilation tells the backend."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from typing_extensions import Self

from ipu_model.errors import require
from poptorch._logging import logger, native_logger, repeat_filter
from poptorch._options_config import parseAndSetOptions, run_json
from poptorch._options_impl import OptionsDict, ProgressBar, check_type, default_source_location_excludes
from poptorch.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from poptorch.options.backend import UINT64_MAX, BackendSettings, engine_options_of_environment
from poptorch.options.strategies import PipelinedExecution, _IExecutionStrategy, _IPhasedExecution, runs_stages_at_once
from poptorch.options.sub_options import (
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)

_PARTS = ("Distributed", "Jit", "Precision", "TensorLocations", "Training", "_Popart")


class Options(OptionsDict):
    """Settings of a model; setters return the object they were called on, so that calls chain.

        options = poptorch.Options().deviceIterations(4).replicationFactor(2)
        options.Training.gradientAccumulation(8)

    A new object starts from the defaults, then applies `POPTORCH_CACHE_DIR` and `POPTORCH_DEFAULT_OPTIONS`. Setters
    raise `AttributeError` when the options are frozen, and `AssertionError` for values of other types.
    """

    def __init__(self) -> None:
        self._popart = _PopartOptions()
        self._training = _TrainingOptions(self._popart)
        self._precision = _PrecisionOptions(self._popart)
        self._tensor_locations = _TensorLocationOptions()
        self._distributed = _DistributedOptions()
        self._jit = _JitOptions()
        self._execution_strategy: _IExecutionStrategy = PipelinedExecution()
        self._show_compilation_progress_bar = True
        self._source_location_excludes = list(default_source_location_excludes)
        self._relax_optimizer_checks = False
        self._module_namescope_enabled = True
        # The order of these keys is the order of the printed form.
        super().__init__(
            replication_factor=1,
            input_group_size=1,
            input_cgt=CommGroupType.Consecutive,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            max_repeat_logs=4,
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=OutputMode.Default.value,
            output_return_period=1,
            connection_type=ConnectionType.Always.value,
            sync_pattern=SyncPattern.Full.value,
            available_memory_proportion={},
        )
        cache_dir = os.environ.get("POPTORCH_CACHE_DIR")
        if cache_dir:
            logger.info("POPTORCH_CACHE_DIR is set: enabling executable caching in %s.", cache_dir)
            self.enableExecutableCaching(cache_dir)
        default_options = os.environ.get("POPTORCH_DEFAULT_OPTIONS")
        if default_options:
            logger.info("POPTORCH_DEFAULT_OPTIONS is set: applying %s.", default_options)
            self.from_json(default_options)

    @property
    def Training(self) -> _TrainingOptions:
        """Options of the weight update."""
        return self._training

    @property
    def Precision(self) -> _PrecisionOptions:
        """Options of rounding and accumulator types."""
        return self._precision

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Options of memory placement."""
        return self._tensor_locations

    @property
    def Distributed(self) -> _DistributedOptions:
        """Process count and rank."""
        return self._distributed

    @property
    def Jit(self) -> _JitOptions:
        """Deprecated options of PopTorch's old front end."""
        return self._jit

    @property
    def _Popart(self) -> _PopartOptions:
        return self._popart

    @property
    def _backend(self) -> BackendSettings:
        return BackendSettings(self._popart.options)

    def loadFromFile(self, filepath: str | os.PathLike[str]) -> Self:
        """Apply a file of statements, each written as it would be after `options.`.

        You need not trust the file: it can only call setters with numbers, text, containers and PopTorch's own
        settings. (The original PopTorch runs any Python in it.) Setters may name folders that are written to later.

        Raises `ConfigFileError` for a syntax error and for anything but settings, and applies nothing then; other
        errors of a statement, or of opening the file, pass through.
        """
        parseAndSetOptions(self, filepath)
        return self

    def from_json(self, string: str) -> Self:
        """Apply a JSON object such as `{"Precision.enableStochasticRounding": true}`.

        Accessors are public setters (and `_Popart.set`): the text cannot reach anything else. Raises
        `json.JSONDecodeError` for malformed JSON and `AttributeError` for an unknown accessor.
        """
        run_json(self, string)
        return self

    def clone(self) -> Self:
        """Return an independent copy that can be changed even if this object is frozen."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        # One memo for all of it: Training and Precision of the copy then share the copy's _Popart.
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        copied._unfreeze()
        return copied

    def defaultOutputMode(self) -> bool:
        """Return whether the output mode is still to be chosen by the wrapper."""
        return bool(self.output_mode == OutputMode.Default)

    def toDict(self) -> dict[str, Any]:
        """Return all settings for the backend as one flat dict.

        Raises `AssertionError` while the output mode is `Default`, and for keys of `_Popart` that PopTorch sets itself.
        """
        message = "An output mode must be picked before options are handed over: call outputMode() or wrap a model."
        require(not self.defaultOutputMode(), message)
        flat = dict(self._popart.options)
        for part in (self, self._training, self._precision, self._distributed, self._tensor_locations, self._jit):
            part.update(flat)
        emitted = self._execution_strategy.backendOptions()
        common = sorted(set(flat) & set(emitted))
        require(not common, f"The strategy and the options have keys in common: {', '.join(common)}.")
        shown = {"compilation_progress_bar_fn": ProgressBar()} if self._show_compilation_progress_bar else {}
        return {**flat, **shown, **emitted}

    def _resolve_output_mode(self, default: OutputMode) -> None:
        """Settle the output mode of a wrapper's own copy and its anchors: `default` if none was chosen."""
        if self.defaultOutputMode():
            self.set(output_mode=default.value)
        mode = OutputMode(self.output_mode)
        period = self.output_return_period if mode is OutputMode.EveryN else 1
        self.set(
            anchored_tensors={
                short: [long, inherits, mode, period] if inherits else [long, inherits, own_mode, own_period]
                for short, (long, inherits, own_mode, own_period) in self.anchored_tensors.items()
            }
        )

    def _assign(self, **private: object) -> Self:
        self.checkIsFrozen()
        self.__dict__.update(private)
        return self

    def _changeFreezeState(self, new_state: bool) -> None:
        super()._changeFreezeState(new_state)
        for name in _PARTS:
            getattr(self, name)._changeFreezeState(new_state)

    def _repr_of_the_rest(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in _PARTS)

    def deviceIterations(self, device_iterations: int) -> Self:
        """Set how many iterations the device runs for one call: training steps, or inference batches."""
        return self.set(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Self:
        """Set how many data-parallel copies of the model this process runs."""
        return self.set(replication_factor=replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Self:
        """Give groups of replicas the same input; call `replicationFactor` first.

        Raises `ValueError` for the type `All` and for a size that does not divide the replication factor.
        """
        check_type("input_group_size", input_group_size, int)
        message = f"input_group_type must be a poptorch.CommGroupType; got {input_group_type!r}."
        require(isinstance(input_group_type, CommGroupType), message)
        if input_group_type is CommGroupType.All:
            raise ValueError("input_group_type cannot be All: use Consecutive, with the replication factor as size.")
        if input_group_type is CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, CommGroupType.Consecutive
        factor = self.replication_factor
        size = f"input_group_size ({input_group_size})"
        if input_group_size > factor:
            larger = f"{size} cannot be larger than replication_factor ({factor})"
            raise ValueError(f"{larger}: call replicationFactor first.")
        if input_group_size < 1 or factor % input_group_size:
            raise ValueError(f"{size} must be a factor of replication_factor ({factor}).")
        return self.set(input_group_size=input_group_size, input_cgt=input_group_type)

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Set which micro-batches' outputs a call returns; `EveryN` needs the period, a positive number of them."""
        _check_output_mode(output_mode, output_return_period)
        if output_return_period is not None and output_mode is not OutputMode.EveryN:
            text = "output_return_period=%s has no effect with OutputMode.%s: only EveryN uses it."
            logger.info(text, output_return_period, output_mode.name)
        return self.set(output_mode=output_mode.value, output_return_period=output_return_period or 1)

    def anchorTensor(
        self, short_name: str, long_name: str, output_mode: OutputMode | None = None, output_return_period: int = 1
    ) -> None:
        """Make an internal tensor readable with `getAnchoredTensor(short_name)` after a run.

        `long_name` is one of `getTensorNames()`, such as `Gradient___fc1.weight`; a name that the model does not have
        is an error when it is compiled. The tensor always follows the model's output mode: as in this release of
        PopTorch, a mode of its own has no effect. Raises like `outputMode`, but not when frozen: a model has its own
        copy of the options.
        """
        require(isinstance(short_name, str), f"The short name of an anchor must be a string; got {short_name!r}.")
        require(isinstance(long_name, str), f"The name of the tensor to anchor must be a string; got {long_name!r}.")
        mode = OutputMode.Default if output_mode is None else output_mode
        _check_output_mode(mode, output_return_period)
        period = output_return_period if mode is OutputMode.EveryN else 1
        self.anchored_tensors[short_name] = [long_name, mode is OutputMode.Default, mode, period]

    def setExecutionStrategy(self, strategy: _IExecutionStrategy) -> Self:
        """Set how blocks are placed and scheduled; raise `AssertionError` unless it is a strategy object."""
        require(
            isinstance(strategy, _IExecutionStrategy),
            "setExecutionStrategy takes a PipelinedExecution, ShardedExecution, SerialPhasedExecution or "
            f"ParallelPhasedExecution object; got {strategy!r}.",
        )
        return self._assign(_execution_strategy=strategy)

    def randomSeed(self, random_seed: int) -> Self:
        """Seed the device's generator, and PyTorch's generator on the host at once (even of a frozen object)."""
        require(isinstance(random_seed, int), f"The random seed must be an int; got {random_seed!r}.")
        require(0 <= random_seed <= UINT64_MAX, f"The random seed must be from 0 to 2**64 - 1; got {random_seed}.")
        torch.manual_seed(random_seed)
        return self.createOrSet(random_seed=random_seed)

    def enableSyntheticData(self, enabled: bool | int) -> Self:
        """Switch host I/O off and let the device make up normally distributed inputs."""
        random_normal, off = 2, 0
        return self._set_backend("syntheticDataMode", random_normal if enabled else off)

    def enableStableNorm(self, enabled: bool) -> Self:
        """Use the slower, more accurate formulas in normalisation layers."""
        return self._set_backend("enableStableNorm", enabled)

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Keep one copy of the model's buffers for all replicas, or (`False`) one for each."""
        return self.set(broadcast_buffers=broadcast_buffers)

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """Set when to attach to a device; raise `AssertionError` unless it is a `ConnectionType`."""
        check_type("connectionType", connection_type, ConnectionType)
        return self.set(connection_type=connection_type.value)

    def useIpuModel(self, use_model: bool) -> Self:
        """Choose the simulator or hardware, whatever the environment variables say."""
        return self.createOrSet(use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Self:
        """Choose a device by its system id; raise `AssertionError` for a non-int."""
        check_type("useIpuId", ipu_id, int)
        return self.createOrSet(ipu_id=ipu_id)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile for IPU version 1, 2 or 21 without a device; the model then cannot run."""
        check_type("useOfflineIpuTarget", ipu_version, int)
        return self.connectionType(ConnectionType.Never).createOrSet(ipu_version=ipu_version)

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Set which IPUs synchronise; raise `AssertionError` unless it is a `SyncPattern`."""
        check_type("syncPattern", sync_pattern, SyncPattern)
        return self.set(sync_pattern=sync_pattern.value)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Reserve the next power of two of IPUs instead of failing when the model needs another number."""
        return self.set(auto_round_num_ipus=auto_round_num_ipus)

    def setAvailableMemoryProportion(self, available_memory_proportion: Mapping[str, float]) -> Self:
        """Set the share of tile memory that ops may use for temporary data, by IPU: `{"IPU0": 0.6}`.

        Replaces all earlier shares. Raises `AssertionError` or `ValueError` for other keys than `IPU` and an integer.
        """
        expected = (
            'Available memory proportions are expected to be in a dictionary of {"IPU0": X} where the 0 in IPU is the '
            "index of the IPU."
        )
        given: object = available_memory_proportion
        require(isinstance(given, Mapping), f"{expected} Got {given!r}.")
        by_ipu = {}
        for key, value in available_memory_proportion.items():
            require(str(key).startswith("IPU"), f"{expected} Invalid key: {key}.")
            by_ipu[int(key.removeprefix("IPU"))] = value
        return self.set(available_memory_proportion=by_ipu)

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Keep compiled programs in a directory; `None` switches the cache off."""
        if path is not None:
            self._popart.set("cachePath", path)
        return self._set_backend("enableEngineCaching", path is not None)

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Write a report to `<profile_dir>/<model name>/` when a model is compiled (default: in the working directory).

        Warns about settings that `POPLAR_ENGINE_OPTIONS` overrides.
        """
        profiling = {
            "debug.allowOutOfMemory": "true",
            "autoReport.directory": profile_dir or ".",
            "autoReport.all": "true",
        }
        for name in sorted(profiling.keys() & engine_options_of_environment()):
            logger.warning("enableProfiling: %s is overridden by environment variable POPLAR_ENGINE_OPTIONS.", name)
        return self._set_backend("engineOptions", {**self._popart.options.get("engineOptions", {}), **profiling})

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Count the (here: modelled) cycles of each run, for `cycleCount()` and the log."""
        return self._set_backend("instrumentWithHardwareCycleCounter", log_cycle_count)

    def modelName(self, name: str) -> Self:
        """Set the model's name in reports (default: `training` or `inference`)."""
        return self.createOrSet(model_name=name)

    def logDir(self, log_dir: str) -> Self:
        """Set the directory that log files go to."""
        return self.set(log_dir=log_dir)

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Set how often the same log line is shown; `None` means without limit."""
        return self.set(max_repeat_logs=UINT64_MAX if max_lines is None else max_lines)

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Show a progress bar while compiling; `compilationTime()` needs it."""
        return self._assign(_show_compilation_progress_bar=show)

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Report unexpected optimiser attributes as debug lines instead of warnings."""
        return self._assign(_relax_optimizer_checks=relax)

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Replace the path fragments that are skipped when an op is traced back to user code."""
        return self._assign(_source_location_excludes=list(excludes))

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Add path fragments to those skipped when an op is traced back to user code."""
        return self._assign(_source_location_excludes=[*self._source_location_excludes, *excludes])

    def disableModuleNamescope(self) -> Self:
        """Leave the path of modules out of the names of ops."""
        return self._assign(_module_namescope_enabled=False)

    def updatableNamedBuffers(self, buffers: list[str]) -> Self:
        """Name the buffers that `copyNamedBuffersToDevice()` may refresh on their own."""
        return self._set_backend("updatableNamedBuffers", buffers)


def _check_output_mode(mode: OutputMode, period: int | None) -> None:
    require(isinstance(mode, OutputMode), f"The output mode must be a poptorch.OutputMode; got {mode!r}.")
    require(
        mode is not OutputMode.EveryN or (isinstance(period, int) and period > 0),
        f"OutputMode.EveryN must have output_return_period, a positive int; got {period!r}.",
    )


# PopART's enum values (options reference, section 9).
_RECOMPUTE_PIPELINE = 3
_VIRTUAL_GRAPHS_MANUAL, _VIRTUAL_GRAPHS_EXECUTION_PHASES = 1, 3
_SCHEDULE_SCHEDULER = 0


def log_options(options: Options) -> None:
    """Write one debug line for each option handed over; the output mode must be resolved."""
    repeat_filter.start(options.max_repeat_logs)
    if native_logger.isEnabledFor(logging.DEBUG):
        for line in option_lines(options.toDict()):
            native_logger.debug("%s", line)


def option_lines(flat: dict[str, Any]) -> Iterable[str]:
    for key, value in flat.items():
        if key == "anchored_tensors":
            for long_name, _, mode, period in value.values():
                name = OutputMode(mode).name
                yield f"anchor ( {long_name} {name if name == 'Sum' else name.upper()}/{period} )"
        elif key == "compilation_progress_bar_fn":
            continue
        elif isinstance(value, dict):
            for entry, item in value.items():
                yield f"poptorch.Options set {key}[{entry}] to {_plain(item)}"
        elif isinstance(value, (list, set, tuple)):
            for item in value:
                yield f"poptorch.Options added {_plain(item)} to {key}"
        else:
            yield f"poptorch.Options set {key} to value {_plain(value)}"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, int) else str(value)


def derived_settings(
    options: Options, ipus: int, *, gradient_clipping: bool = False, overlapped_io: bool = False
) -> dict[str, Any]:
    """Return the settings derived for a program whose replicas use `ipus` IPUs, as they take effect; log each one.

    A setting that the user forced keeps the user's value; a warning is logged if the derived value differs.
    """
    derived = _derived(options, ipus, gradient_clipping, overlapped_io)
    engine_options = options._backend.raw.get("engineOptions", {})
    user = {**options._backend.raw, **{f"engineOptions[{name}]": value for name, value in engine_options.items()}}
    for name, value in derived.items():
        forced = user.get(name, value)
        shown = int(value) if isinstance(value, bool) else value
        if forced == value:
            native_logger.debug("%s set to value %s", name, shown)
        else:
            native_logger.warning("%s forced by the user to %s: the value %s is ignored", name, forced, shown)
    return {name: user.get(name, value) for name, value in derived.items()}


def _derived(options: Options, ipus: int, gradient_clipping: bool, overlapped_io: bool) -> dict[str, bool | int | str]:
    strategy = options._execution_strategy
    pipelined = runs_stages_at_once(strategy) and ipus > 1
    settings: dict[str, bool | int | str] = {
        "enablePipelining": pipelined,
        "enableReplicatedGraphs": options.replication_factor > 1,
        "enableGradientAccumulation": options.Training.gradient_accumulation > 1,
        "constantWeights": False,
        "enableLoadAndOffloadRNGState": True,
    }
    if pipelined:
        settings["autoRecomputation"] = _RECOMPUTE_PIPELINE
        if gradient_clipping:
            settings["accumulateOuterFragmentSettings.schedule"] = _SCHEDULE_SCHEDULER
    if isinstance(strategy, _IPhasedExecution):
        settings["virtualGraphMode"] = _VIRTUAL_GRAPHS_EXECUTION_PHASES
        settings["executionPhaseSettings.stages"] = 1 if strategy._serial else 2
        settings["executionPhaseSettings.phases"] = strategy.total_phases()
    elif ipus > 1:
        settings["virtualGraphMode"] = _VIRTUAL_GRAPHS_MANUAL
    if options.Distributed.numProcesses > 1:
        settings["enableDistributedReplicatedGraphs"] = True
        settings["globalReplicationFactor"] = options.replication_factor * options.Distributed.numProcesses
        settings["globalReplicaOffset"] = options.replication_factor * options.Distributed.processId
    if overlapped_io:
        settings |= {"useHostCopyOps": True, "enableExplicitMainLoops": True}
    return settings | {"engineOptions[debug.retainDebugInformation]": "false"}
