"""`PoplarExecutor`: what `trainingModel` and `inferenceModel` return."""

from __future__ import annotations

import logging
import os
import weakref
from contextlib import ExitStack
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import DefaultDeviceType

from ipu_model.capture.describe import digest_of
from ipu_model.errors import Error, OutOfMemory, require
from ipu_model.process import ForkSafeLock, interrupt_postponed
from poptorch import _poptorch_data
from poptorch._args_parser import ArgsParser, BoundArguments, check_on_host, check_same
from poptorch._backend.compile import (
    Compiled,
    _registerHook,
    compilation_progress,
    compile_program,
    move_long_message,
    registerPostCompileHook,
    registerPreCompileHook,
)
from poptorch._backend.settings import check_options, own_options
from poptorch._backend.tensor_names import graph_text, present, synthetic, tensor_names
from poptorch._backend.weights import HostWeights, Optimisation, ParameterView, groups_of
from poptorch._backend.wrapping import RUNS, Wrapping, links_into, shallow_copy
from poptorch._impl import Function, OptimizerWrapper
from poptorch._logging import logger, native_logger, once_logger
from poptorch._poptorch_data import VERSION, Executable, damage_named, path_of, pickled
from poptorch._printing import module_repr
from poptorch.enums import CommGroupType, ConnectionType, VariableRetrievalMode
from poptorch.optim import Optimizer
from poptorch.options import Options

if TYPE_CHECKING:
    from ipu_model.predict.profile import Profile
    from ipu_model.predict.program import Program
    from poptorch._backend.modelling import Latency, PerfCounters

__all__ = ["NO_EXECUTABLE_ERR", "PoplarExecutor", "_registerHook", "registerPostCompileHook", "registerPreCompileHook"]

NO_EXECUTABLE_ERR = "Model has not been compiled or has been destroyed."

_DETACHED = (
    "Input tensor has requires_grad=True set. This tensor will be detached because backward pass via inputs is not "
    "supported."
)
_COPIED = "At least one input tensor is not contiguous: non-contiguous tensors will be converted."


def in_turn(method: Function) -> Function:
    """Let a method wait until no other thread is in a method of the same executor.

    Deadlock is impossible: a thread that holds an executor's turn waits for its turn to trace only while that executor
    is not attached, and reading weights takes turns only of executors that are attached.
    """

    @wraps(method)
    def waiting(self: PoplarExecutor, *args: Any, **kwargs: Any) -> Any:
        with self._turn.lock:
            return method(self, *args, **kwargs)

    return cast(Function, waiting)


class _SetDefaultDeviceType:
    """Lets PyTorch's checkpoints of activations look for tensors on the CPU, where they are while forward is traced."""

    def __init__(self) -> None:
        self._saved = DefaultDeviceType.get_device_type()

    def replace(self) -> None:
        self._saved = DefaultDeviceType.get_device_type()
        DefaultDeviceType.set_device_type("cpu")

    def restore(self) -> None:
        DefaultDeviceType.set_device_type(self._saved)


class _OverwriteContextManager:
    """Lets the managers of all registered classes replace something while forward is traced, and restore it.

    What they replace belongs to the process, so threads that compile different models take turns.
    """

    _subsitution_manager_types: ClassVar[list[Any]] = [_SetDefaultDeviceType]
    _one_at_a_time: ClassVar[ForkSafeLock] = ForkSafeLock()

    def __init__(self) -> None:
        self._restorations = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as restorations:
            restorations.enter_context(self._one_at_a_time.lock)
            for kind in self._subsitution_manager_types:
                manager = kind()
                manager.replace()
                restorations.callback(manager.restore)
            self._restorations = restorations.pop_all()

    def __exit__(self, exc_type: object, value: object, traceback: object) -> None:
        self._restorations.close()

    @classmethod
    def registerSubsitutionManager(cls, type: Any) -> None:
        """Let an object of this class `replace()` things before each trace, and `restore()` them after it."""
        cls._subsitution_manager_types.append(type)


class PoplarExecutor:
    """A model compiled for the device: a call runs `deviceIterations x gradientAccumulation` micro-batches.

    Made by `trainingModel` and `inferenceModel`; programs derive classes of their own. `model` is what is traced, a
    shallow copy of the user's module, if that is given. Unknown attributes are looked up on the user's module. All
    seconds and cycles that it reports are modelled for an IPU system and do not depend on the speed of this machine.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options | None,
        training: bool,
        poptorch_version: str,
        optimizer: torch.optim.Optimizer | None = None,
        user_model: nn.Module | None = None,
    ) -> None:
        require(training or optimizer is None, "An inference model has no optimizer: use poptorch.trainingModel.")
        options = Options() if options is None else options
        if not isinstance(options, Options):
            raise Error(f"Invalid type: 'options' is of type {type(options)} (expected poptorch.Options).")
        options._freeze()
        self._turn = ForkSafeLock()
        self._options = own_options(options, training)
        self._poptorch_version = poptorch_version
        self._traced_model = model
        self._user_model = model if user_model is None else user_model
        self._args_parser = ArgsParser(model)
        # By the name of a parameter, the arguments of its `replicaGrouping`; programs set them directly, too.
        self.per_replica_params: dict[str, tuple[CommGroupType, int, VariableRetrievalMode]] = {}
        self._compiled: Compiled | None = None
        # Of the compiled program, or of one that was too large.
        self._modelled: tuple[Program, BoundArguments] | None = None
        self._log_once = once_logger()
        self._rng_state: list[int] | None = [self._options.random_seed] if self._options.exists("random_seed") else None
        self._wrapping = Wrapping(self._user_model, self)
        # An inference executor follows the weights of training executors.
        self._sources = [] if training else links_into(model)
        self._uploaded: list[int] = []
        self._host = HostWeights(self._traced_model)
        self._optimisation: Optimisation | None = None
        if training:
            self._optimisation = Optimisation(optimizer, self._traced_model, self._options)
            self._wrapping.apply(self._host.tensors())
            # Also an executor that is dropped unwraps its module.
            weakref.finalize(self, self._wrapping.undo).atexit = False

    @classmethod
    def _around(
        cls, module: nn.Module, options: Options | None, training: bool, optimizer: torch.optim.Optimizer | None = None
    ) -> PoplarExecutor:
        # An inference executor's module is the copy, so that its `model.eval()` reaches what is traced.
        user_model = module if training else None
        return cls(shallow_copy(module), options, training, VERSION, optimizer, user_model)

    @property
    def model(self) -> nn.Module:
        """The user's module."""
        return self._user_model

    # Programs and derived classes ask for these, for instance whether the model is compiled, and for which batch size.

    _training = property(lambda self: self._optimisation is not None)
    _executable = property(lambda self: self._compiled)
    _executable_inputs = property(lambda self: self._compiled and self._compiled.arguments)
    _is_attached = property(lambda self: self.isAttachedToDevice())

    @property
    def _model(self) -> nn.Module:
        traced, optimisation = self._traced_model, self._optimisation
        return traced if optimisation is None else OptimizerWrapper(traced, optimisation.optimizer)

    @property
    def options(self) -> Options:
        """The executor's own frozen options."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(name)
        value = getattr(self._user_model, name)
        return ParameterView(value, partial(self._group, name)) if isinstance(value, nn.Parameter) else value

    def _group(self, name: str, kind: CommGroupType, shards: int, mode: VariableRetrievalMode) -> None:
        if self._compiled is not None:
            raise Error(
                f"replicaGrouping() of parameter '{name}': the model is compiled. Call it before the first call or "
                "compile(), or destroy() the model and wrap it again."
            )
        groups_of(name, self._user_model, self._options, kind, shards, mode)
        self.per_replica_params[name] = (kind, shards, mode)

    def _read_groupings(self) -> None:
        for name, given in self.per_replica_params.items():
            grouping: Any = given
            if not isinstance(grouping, (tuple, list)) or len(grouping) != 3:
                rule = "is a tuple of poptorch.CommGroupType, shards and poptorch.VariableRetrievalMode"
                raise Error(
                    f"per_replica_params[{name!r}] {rule}, the arguments of replicaGrouping(); got {grouping!r}."
                )
            self._host.groupings[name] = groups_of(name, self._user_model, self._options, *grouping)

    def __copy__(self) -> PoplarExecutor:
        """Return another name for the same executor: both are compiled, run and destroyed together."""
        twin: PoplarExecutor = object.__new__(type(self))
        self.__dict__.setdefault("_first", self)  # A wrapped module lasts as long as the executor that wrapped it.
        twin.__dict__ = self.__dict__
        return twin

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy deeply, or pickle, as an executor that is not compiled, around a copy of the module as it is now."""
        self.copyWeightsToHostIfNeeded()
        optimisation = self._optimisation
        optimizer = None if optimisation is None else optimisation.optimizer
        return PoplarExecutor._around, (self._user_model, self._options, self._training, optimizer)

    def __repr__(self) -> str:
        return module_repr(self._traced_model)

    # --- compiling and running

    @in_turn
    @torch.inference_mode(False)
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Build the executable from sample arguments, upload weights and attach (unless offline)."""
        arguments = self._bind(args, kwargs)
        if self._compiled is not None:
            logger.warning("Call to compile() ignored: model already compiled. Call destroy() first.")
            return
        self._compile(arguments)

    def isCompiled(self) -> bool:
        """Whether there is an executable."""
        return self._compiled is not None

    @in_turn
    @torch.inference_mode(False)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compile and attach if needed, run one call, and return forward's outputs for its micro-batches."""
        require(
            self._options.connection_type != ConnectionType.Never,
            "Trying to run a model on an offline device (ConnectionType.Never): use compile() only, or another "
            "connection type.",
        )
        arguments = self._bind(args, kwargs)
        now = self._compile(arguments) if self._compiled is None else self._compiled
        arguments = check_same(now.arguments, arguments)
        check_on_host(arguments.tensors)
        if not now.attached:
            self.attachToDevice()
        if self._refreshed_sources() != self._uploaded:
            self.copyWeightsToDevice()
        optimizer = None if self._optimisation is None else self._optimisation.stateful
        if now.updates is not None and optimizer is not None and optimizer._pending is not None:
            self.copyWeightsToHostIfNeeded()
            self._upload_weights(now)
            now.updates.upload_pending()
        inputs = arguments.tensors
        if self._options._backend.synthetic_data:
            inputs = synthetic(inputs, now.session.randomness.seed)
        try:
            results = now.session.run(inputs)
        finally:
            # A run that was interrupted may have updated weights already.
            with interrupt_postponed():
                now.has_run = True
                self._wrapping.last_run = next(RUNS)
                if self._optimisation is not None:
                    now.newer_weights = True
                if optimizer is not None:
                    optimizer._invalidate()
        if self._options._backend.counts_cycles and native_logger.isEnabledFor(logging.DEBUG):
            native_logger.debug("Total number of IPU cycles: %d", self.cycleCount())
        outputs, now.anchored = present(now.graph, now.anchors, results)
        return outputs

    @interrupt_postponed()
    def _compile(self, arguments: BoundArguments, saved: tuple[Executable, Path] | None = None) -> Compiled:
        """Trace, check and build; a failure undoes everything, the wrapping of the module included."""
        if self._training:
            self._wrapping.apply(self._host.tensors())
        try:
            self._read_groupings()
            check_options(self._options)
            self._refreshed_sources()
            arguments.warn_about_dicts()
            # What is traced is not compiled yet, so its weights are on the host.
            with compilation_progress(self._options), _OverwriteContextManager(), self._wrapping.lifted():
                seed = self._rng_state[0] if self._rng_state else None
                model = self._traced_model
                now = compile_program(
                    model, self._options, arguments, self._host, self._optimisation, seed=seed, saved=saved
                )
            if self._options.connection_type != ConnectionType.Never:
                self._attach(now)
            self._compiled, self._modelled = now, (now.program, now.arguments)
        except BaseException as error:
            self._modelled = None
            if isinstance(error, OutOfMemory):
                self._modelled = cast("Program", error.program), arguments.without_values()
            move_long_message(error)
            self._wrapping.undo()
            raise
        return now

    def _refreshed_sources(self) -> list[int]:
        """Let all training executors that this one follows copy newer weights to the host; return their versions."""
        for link in self._sources:
            link.refresh()
        return [link.version for link in self._sources]

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundArguments:
        arguments = self._args_parser(args, kwargs)
        for tensor in arguments.tensors:
            if tensor.is_nested:
                raise Error("Unsupported input type: a nested tensor. Pad it: torch.nested.to_padded_tensor(x, 0.0).")
            if tensor.layout is not torch.strided:
                raise Error(f"Unsupported input type: a tensor of layout {tensor.layout}. Call to_dense().")
            if tensor.requires_grad:
                self._log_once(logging.WARNING, _DETACHED)
            if not tensor.is_contiguous():
                self._log_once(logging.WARNING, _COPIED)
        return arguments

    @in_turn
    @interrupt_postponed()
    def destroy(self) -> None:
        """Bring state back to the host and drop the executable; a training model is unwrapped."""
        if self._compiled is None:
            return
        if self._compiled.attached:
            self._bring_state_back()
        self._compiled = self._modelled = None
        self._wrapping.undo()

    def _require_compiled(self) -> Compiled:
        if self._compiled is None:
            raise Error(f"{NO_EXECUTABLE_ERR} Call the model, or compile() it, first.")
        return self._compiled

    def _require_attached(self, what: str) -> Compiled:
        now = self._require_compiled()
        if not now.attached:
            raise Error(f"{what}: the model is not attached to a device. Call attachToDevice() first.")
        return now

    # --- the device

    @in_turn
    def attachToDevice(self) -> None:
        """Take the device and upload weights, optimiser state and random state."""
        now = self._require_compiled()
        require(self._options.connection_type != ConnectionType.Never, "Trying to attach to an offline device.")
        if now.attached:
            raise Error("Device is already attached.")
        self._attach(now)

    def _attach(self, now: Compiled) -> None:
        self._refreshed_sources()
        if now.updates is not None and now.has_run:
            now.updates.weights_replaced()
        self._upload_weights(now)
        if self._rng_state is not None:
            now.session.randomness.restore(self._rng_state)
        if now.updates is not None:
            now.updates.upload_pending()
            now.updates.bind()
        now.attached = True

    @in_turn
    def detachFromDevice(self) -> None:
        """Copy weights, optimiser and random state back (inference: random state only) and release the device."""
        now = self._require_compiled()
        if not now.attached:
            raise Error("Device is not attached.")
        self._bring_state_back()
        self._rng_state = now.session.randomness.state()
        now.attached = False

    def _bring_state_back(self) -> None:
        if self._optimisation is not None:
            self.copyWeightsToHostIfNeeded()
            self._optimisation.detach()

    def isAttachedToDevice(self) -> bool:
        """Whether the executor holds the device."""
        return self._compiled is not None and self._compiled.attached

    # --- weights

    @in_turn
    def copyWeightsToHost(self) -> None:
        """Copy the device's weights and buffers into the user's module."""
        now = self._require_attached("copyWeightsToHost")
        with torch.inference_mode(False):
            self._host.store(now.session.download())
        now.newer_weights = False
        # Inference executors tied to this one upload them before their next run.
        self._wrapping.version += 1

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copy the weights to the host if the device has newer ones; return whether that was so."""
        if self._with_newer_weights() is None:
            return False
        with self._turn.lock:
            # Another thread may have copied them or destroyed the executable in the meantime.
            now = self._with_newer_weights()
            if now is None:
                return False
            # By its public name, and only once: programs put their own method in its place, which may read weights.
            now.newer_weights = False
            try:
                self.copyWeightsToHost()
            except BaseException:
                now.newer_weights = True
                raise
            return True

    def _with_newer_weights(self) -> Compiled | None:
        now = self._compiled
        return now if now is not None and now.newer_weights and now.attached else None

    @in_turn
    def copyWeightsToDevice(self) -> None:
        """Copy the user's module's weights to the device, discarding newer ones there."""
        now = self._require_attached("copyWeightsToDevice")
        if now.updates is not None:
            now.updates.weights_replaced()
        self._upload_weights(now)
        self._wrapping.version += 1

    @in_turn
    def copyNamedBuffersToDevice(self) -> None:
        """Upload only the buffers that `Options.updatableNamedBuffers` names. Raises `Error`: it names none."""
        now = self._require_attached("copyNamedBuffersToDevice")
        names = self._options._backend.updatable_buffers
        if not names:
            raise Error(
                "No named buffers marked as updatable. Name them in "
                "poptorch.Options().updatableNamedBuffers([...]) first."
            )
        variables = tuple(v for v in now.graph.variables if set(v.names) & set(names))
        now.session.upload(self._host.values(now.graph, variables))

    @in_turn
    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """Load into the user's module, then upload if attached; return torch's report of mismatched keys."""
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result

    @torch.inference_mode(False)
    def _upload_weights(self, now: Compiled) -> None:
        now.session.upload(self._host.values(now.graph, now.graph.variables))
        now.newer_weights = False
        self._uploaded = [link.version for link in self._sources]

    # --- optimiser and random state

    @in_turn
    def setOptimizer(self, optimizer: Any) -> None:
        """Use the current settings of `optimizer` from the next call on.

        Raises `Error`: a change that needs a new compilation; `ValueError`: a float16 accumulator set after that.
        """
        if self._optimisation is None:
            raise Error("setOptimizer: an inference model has no optimizer. Use poptorch.trainingModel.")
        self._optimisation.replace(optimizer, None if self._compiled is None else self._compiled.updates)

    @property
    def rng_state(self) -> list[int] | None:
        """Seed and state words of the device's random streams; `None` before the first run without a seed."""
        now = self._require_compiled()
        return now.session.randomness.state() if now.attached and now.has_run else self._rng_state

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        now = self._require_compiled()
        state = list(state)
        now.session.randomness.check(state)
        self._rng_state = state
        if now.attached:
            now.session.randomness.restore(self._rng_state)

    # --- tensors by name

    def getTensorNames(self) -> list[str]:
        """Return the names that `Options.anchorTensor` accepts, in the order in which tensors are created."""
        now = self._compiled
        if now is None:
            raise AssertionError(
                "Model must be compiled before its tensors have names. Call the model, or compile() it, first."
            )
        return list(tensor_names(now.graph, self._options, now.numbers))

    def getAnchoredTensor(self, short_name: str) -> Tensor:
        """Return the value that the last call gave to the tensor anchored as `short_name`.

        The model's output mode decides which micro-batches it holds, as for what forward returns. An updated variable
        (`UpdatedVar___...`) counts once for each weight update.
        """
        names = ", ".join(map(str, self._options.anchored_tensors)) or "none"
        require(
            short_name in self._options.anchored_tensors,
            f"No tensor with name {short_name} found. Anchored: {names}. Anchor it with "
            "poptorch.Options().anchorTensor(short_name, long_name) before the options are used for a model.",
        )
        anchored = {} if self._compiled is None else self._compiled.anchored
        require(
            short_name in anchored,
            f"No tensor with name {short_name} found: the model has not run yet. Call it first; every call gives the "
            "tensor a new value.",
        )
        return anchored[short_name]

    def _debugGetPopartIR(self) -> str:
        if self._compiled is None:
            raise AssertionError("Model must be compiled before its graph can be shown. Call compile() first.")
        return graph_text(self._compiled.step, self._options)

    # --- modelled times

    def getPerfCounters(self) -> PerfCounters:
        """Return the modelled times of the last run's transfers, in seconds since its start.

        A dict of `input`, `input_complete`, `output` and `output_complete`: for each tensor a list of times, one
        for each micro-batch of each replica (outputs: for each result that comes back). The lists are empty
        before the first run and with synthetic data.
        """
        from poptorch._backend.modelling import EVENTS, perf_counters

        now = self._compiled
        if now is None or not now.has_run:
            return {event: [[]] for event in EVENTS}
        anchors = sum(output.anchored for output in now.graph.outputs)
        return perf_counters(now.program, _profile(now), anchors=anchors)

    def getLatency(self) -> Latency:
        """Return minimum, maximum and average modelled seconds from sending an input to receiving its output."""
        return self._latency("input", "output_complete")

    def getHostIpuLatency(self) -> Latency:
        """Return minimum, maximum and average modelled seconds of the transfer of inputs to the device."""
        return self._latency("input", "input_complete")

    def getComputeLatency(self) -> Latency:
        """Return minimum, maximum and average modelled seconds from an input's arrival to its output's departure."""
        return self._latency("input_complete", "output")

    def getIpuHostLatency(self) -> Latency:
        """Return minimum, maximum and average modelled seconds of the transfer of outputs to the host."""
        return self._latency("output", "output_complete")

    def _latency(self, start: str, end: str) -> Latency:
        from poptorch._backend.modelling import latency

        return latency(self.getPerfCounters(), start, end)

    def cycleCount(self) -> int:
        """Return the modelled cycles of the main program in one run: transfers are in it, the wait before it is not.

        Raises `Error`: without `logCycleCount`, or before a run.
        """
        if not self._options._backend.counts_cycles:
            raise Error("Cycle count logging is disabled. Please set option logCycleCount to True to enable.")
        if self._compiled is None or not self._compiled.has_run:
            raise Error("Please run the model at least once before obtaining cycle count.")
        profile = _profile(self._compiled)
        cycles = profile.device_seconds_per_call * profile.machine.clock_hz
        return max(1, round(cycles * (1 - profile.shares["run start"])))

    def compilationTime(self) -> timedelta:
        """Return the modelled time that Graphcore's compiler would take; here compilation takes a second or less.

        Zero if the program came from the executable cache or from a file. Raises `Error`: the progress bar is off.
        """
        if self._compiled is None:
            raise Error("Please compile the model before obtaining the compilation time.")
        if not self._options._show_compilation_progress_bar:
            raise Error("compilationTime needs the progress bar: poptorch.Options().showCompilationProgressBar(True).")
        if self._compiled.was_stored:
            return timedelta()
        return timedelta(seconds=_profile(self._compiled).compilation_seconds)

    # --- files

    def compileAndExport(
        self, filename: str | os.PathLike[str], *args: Any, export_model: bool = True, **kwargs: Any
    ) -> None:
        """Compile for these arguments, then `save` to `filename`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def save(self, filename: str | os.PathLike[str], export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write a file of what the model was compiled for and, with `export_model`, its module, weights and optimiser.

        Missing folders are made; in an existing folder the file is called `model.poptorch`. An old file stays until the
        new one is complete. Without `export_model` the file has no weights. Raises `Error`: arguments that no file can
        hold, or a module that cannot be pickled; `OSError`: the file cannot be written.
        """
        now = self._require_compiled()
        self.copyWeightsToHostIfNeeded()
        path = path_of(filename)
        if Path(filename).is_dir():
            logger.warning("save: %s is an existing directory. The file is written to %s.", filename, path)
        optimizer = None if self._optimisation is None else self._optimisation.optimizer
        if export_model and now.has_run and not isinstance(optimizer, (Optimizer, type(None))):
            logger.warning(
                "save: the state of a torch.optim.%s on the device cannot be read, and starts anew when the model is "
                "loaded. Use poptorch.optim to keep it.",
                type(optimizer).__name__,
            )
        arguments = now.arguments
        executable = Executable(
            training=self._training,
            options=_poptorch_data.options_text(self._options),
            arguments=(arguments.positional, arguments.names, dict(arguments.keywords)),
            weights=_poptorch_data.weights_of(now.graph),
            digest=digest_of(now.graph),
            warnings=now.warnings,
            rng_state=self.rng_state if save_rng_state else None,
            groupings=dict(self._host.groupings),
            exported_model=pickled(self._user_model, optimizer, self._options) if export_model else None,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        _poptorch_data.write(path, executable)

    def loadExecutable(self, filename: str | os.PathLike[str]) -> None:
        """Compile as the file specifies, with the weights and optimiser of this process.

        Forward is traced and must give the program that was saved. Nothing in the file is executed, so you need not
        trust its origin: an exported module in it is ignored. Raises `Error`: "Invalid file", and what is wrong or
        differs; `OSError`: the file cannot be read.
        """
        if self._compiled is not None:
            raise Error("loadExecutable: the model is compiled already. Call destroy() first.")
        path = path_of(filename)
        self._use(_poptorch_data.read(path), path)

    @in_turn
    @torch.inference_mode(False)
    def _use(self, executable: Executable, path: Path) -> None:
        with damage_named(path):
            self._read_groupings()
            _poptorch_data.check(executable, path, self._options, self._host.groupings, training=self._training)
            before = self._rng_state
            self._rng_state = before if executable.rng_state is None else list(executable.rng_state)
            try:
                self._compile(BoundArguments(*executable.arguments), (executable, path))
            except BaseException:
                self._rng_state = before
                raise


def _profile(now: Compiled) -> Profile:
    # The performance model is imported only when it is needed, so that `import poptorch` stays quick.
    from ipu_model.predict import profile_lately

    return profile_lately(now.program)
