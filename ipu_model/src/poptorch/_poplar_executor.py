"""`PoplarExecutor`: what `trainingModel` and `inferenceModel` return."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from ipu_model import interrupts
from ipu_model.compute.session import Session
from ipu_model.entry_points import program_of, program_of_module
from ipu_model.graph import Graph, TensorSpec
from ipu_model.instances import Group
from ipu_model.interrupts import postponed
from ipu_model.turns import Turn
from poptorch._args_parser import BoundArguments, Signature, check_layouts, check_on_host, check_same
from poptorch._backend.anchors import Anchor, AnchoredTensors, by_short_name, updated_variables
from poptorch._backend.compilation import (
    arithmetic_of,
    batching_of,
    captured,
    check_options,
    compilation_progress,
    finished,
    log_derived,
    move_long_message,
    returns_of,
)
from poptorch._backend.device_life import DeviceLife
from poptorch._backend.instances import agree, group_of
from poptorch._backend.modelling.answers import ModelledAnswers
from poptorch._backend.optimisation import Optimisation, loss_scaling_settings
from poptorch._backend.outputs import present, synthetic
from poptorch._backend.own_copies import checked_options, own_options, shallow_copy
from poptorch._backend.saving.cache import cache_directory, key_of, recalled
from poptorch._backend.saving.executables import SavedExecutables
from poptorch._backend.saving.files import KnownProgram
from poptorch._backend.tensor_names import GraphText
from poptorch._backend.turns import in_turn
from poptorch._backend.weights import HostWeights, ParameterView, check_grouped, one_slice_each
from poptorch._backend.wrapping import HostLink, Wrapping, links_into
from poptorch._logging import LogOnce
from poptorch.enums import ConnectionType
from poptorch.ops.blocks import module_repr
from poptorch.options import Options

if TYPE_CHECKING:
    from ipu_model.program import Program

_logger = logging.getLogger("poptorch::python")

_DETACHED = "Input tensors with requires_grad=True are detached: no input gradients are produced."
_COPIED = "An input tensor is not contiguous and is copied before every call."


class PoplarExecutor(DeviceLife, ModelledAnswers, AnchoredTensors, GraphText, SavedExecutables):
    """A model compiled for the device: a call runs `deviceIterations x gradientAccumulation` micro-batches.

    Made by `trainingModel` and `inferenceModel`, never directly. Unknown attributes resolve on the user's
    module.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options | None,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        assert training or optimizer is None, "An inference model has no optimizer: use poptorch.trainingModel."
        self._turn = Turn()
        self._training = training
        options = checked_options(options)
        options._freeze()
        self._options = own_options(options, training)
        self._traced_model = shallow_copy(model)
        # An inference executor's module is the copy, so that its `model.eval()` reaches what is traced.
        self._user_model = model if training else self._traced_model
        self._signature = Signature(self._traced_model.forward)
        self._arguments: BoundArguments | None = None
        self._graph: Graph | None = None
        self._captured: Graph | None = None
        self._model_key: str | None = None
        self._was_stored = False
        self._session: Session | None = None
        self._group: Group | None = None
        self._anchors: list[Anchor] = []
        self._numbers: list[str] = []
        self._anchored: dict[str, Tensor] = {}
        self._forget_model()
        self._attached = False
        self._dirty = False
        self._has_run = False
        self._log_once = LogOnce()
        self._rng_state: list[int] | None = [self._options.random_seed] if self._options.exists("random_seed") else None
        self._link = HostLink(self)
        self._sources = [] if training else links_into(model)
        self._uploaded_versions: list[int] = []
        self._host = HostWeights(self._traced_model)
        self._optimisation: Optimisation | None = None
        self._wrapping: Wrapping | None = None
        if training:
            self._optimisation = Optimisation(optimizer, model, self._options)
            self._wrapping = Wrapping(model, self, self._link)
            self._wrapping.apply(self._host.tensors())

    @property
    def model(self) -> nn.Module:
        """The user's module."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The executor's own frozen options."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(name)
        value = getattr(self._user_model, name)
        return ParameterView(value, name, self) if isinstance(value, nn.Parameter) else value

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "cannot pickle or copy a 'PoplarExecutor' object: it stands for one program on one device. Copy or save "
            "its model (executor.model) or state_dict(), and wrap what you get."
        )

    def __repr__(self) -> str:
        return module_repr(self._traced_model)

    def train(self, mode: bool = True) -> PoplarExecutor:
        """Set the training flag of the user's module (training) or of the traced one (inference)."""
        (self._user_model if self._training else self._traced_model).train(mode)
        return self

    def eval(self) -> PoplarExecutor:
        """Set evaluation mode, like `train(False)`."""
        return self.train(False)

    @in_turn
    @torch.inference_mode(False)
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Build the executable from sample arguments, upload weights and attach (unless offline)."""
        arguments = self._bind(args, kwargs)
        if self._session is not None:
            _logger.warning("Call to compile() ignored: the model is already compiled. Call destroy() first.")
            return
        self._compile(arguments)

    def isCompiled(self) -> bool:
        """Whether there is an executable."""
        return self._session is not None

    @in_turn
    @torch.inference_mode(False)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compile and attach if needed, run one call, return what forward returned for its micro-batches.

        Raises:
            Error: arguments that differ from those compiled for, or anything that compilation refuses.
        """
        assert self._options.connection_type != ConnectionType.Never, (
            "Trying to run a model on an offline device (ConnectionType.Never): use compile() only, or "
            "another connection type."
        )
        arguments = self._bind(args, kwargs)
        if self._session is None:
            self._compile(arguments)
        assert self._arguments is not None
        assert self._session is not None
        assert self._graph is not None
        arguments = check_same(self._arguments, arguments)
        check_on_host(arguments.tensors)
        if not self._attached:
            self.attachToDevice()
        self._bring_up_to_date()
        inputs = arguments.tensors
        if self._options._backend.synthetic_data:
            inputs = synthetic(inputs, self._session.randomness.seed)
        try:
            results = self._session.run(inputs)
        finally:
            # A run that was interrupted may have updated weights already.
            with postponed():
                self._after_run()
        self._log_cycles()
        self._anchored = by_short_name(self._graph, self._anchors, results)
        return present(self._graph, results)

    @postponed()
    def _compile(self, arguments: BoundArguments, known: KnownProgram | None = None) -> None:
        """Trace, unless the program is known, check and build; a failure leaves all as if this had never been called.

        Of a training executor the module is unwrapped then, so that it can be wrapped again with other
        options.
        """
        if self._wrapping is not None:
            self._wrapping.apply(self._host.tensors())
        try:
            check_options(self._options)
            self._refresh_sources()
            arguments.warn_about_dicts()
            with compilation_progress(self._options):
                self._captured = self._program_of(arguments, known)
                self._graph = finished(self._captured, self._traced_model, self._options, training=self._training)
                self._find_anchors(self._graph)
                interrupts.check()
                self._session = self._build(self._graph)
                interrupts.check()
                self._model(self._graph)
            self._arguments = arguments.without_values()
            if self._options.connection_type != ConnectionType.Never:
                self._attach()
        except BaseException as error:
            move_long_message(error)
            self._drop_executable()
            if self._wrapping is not None:
                self._wrapping.undo()
            raise

    def _program_of(self, arguments: BoundArguments, known: KnownProgram | None) -> Graph:
        """Trace one micro-batch, or take a program that is known from a file or from the executable cache."""
        module, options, training = self._traced_model, self._options, self._training

        def source(specs: Sequence[TensorSpec], capture: Callable[[], Graph]) -> Graph:
            def capture_now() -> Graph:
                self._was_stored = False
                return capture()

            self._was_stored = True
            self._model_key = key_of(module, options, arguments, specs, training=training)
            directory = cache_directory(options)
            if known is not None:
                return known.checked(self._model_key, specs) or capture_now()
            if directory is None or self._model_key is None:
                return capture_now()
            return recalled(directory, self._model_key, capture_now)

        check_grouped(
            self._host.groupings, module, options, None if self._optimisation is None else self._optimisation.spec
        )
        with one_slice_each(module, self._host.groupings):
            return captured(module, options, arguments, training=training, source=source)

    def _build(self, graph: Graph) -> Session:
        clips = self._optimisation is not None and self._optimisation.clips_gradients
        log_derived(graph, self._options, gradient_clipping=clips)
        own_seed = self._rng_state[0] if self._rng_state else secrets.randbits(31)
        common_seed = self._join(graph, own_seed)
        session = Session(
            graph,
            batching_of(self._options),
            returns_of(self._options),
            arithmetic=arithmetic_of(self._options),
            reduction=self._reduction(),
            seed=own_seed if self._rng_state else common_seed,
            watched_updates=updated_variables(self._anchors),
            replica_groups=self._host.groupings,
            automatic_loss_scaling=loss_scaling_settings(graph, self._options) if self._training else None,
        )
        if self._optimisation is not None:
            self._optimisation.connect(session, graph, self._traced_model, self._options, common_seed)
        return session

    def _join(self, graph: Graph, seed: int) -> int:
        """Join the other instances of a training run, if there are any; return the seed of what all draw alike."""
        distributed = self._options.Distributed.numProcesses > 1
        if self._optimisation is None or not distributed or self._options.connection_type == ConnectionType.Never:
            return seed
        self._group = group_of(self._options)
        weights = self._host.values(tuple(variable for variable in graph.variables if variable.trainable))
        return agree(self._group, graph, self._options, self._optimisation.spec, weights, seed)

    def _after_run(self) -> None:
        self._has_run = True
        self._link.note_run()
        if self._training:
            self._dirty = True
            assert self._optimisation is not None
            self._optimisation.after_run()

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundArguments:
        """Bind a call's arguments, warning once of tensors that are not sent as they are."""
        arguments = self._signature.bind(args, kwargs)
        check_layouts(arguments.tensors)
        for tensor in arguments.tensors:
            if tensor.requires_grad:
                self._log_once(logging.WARNING, _DETACHED)
            if not tensor.is_contiguous():
                self._log_once(logging.WARNING, _COPIED)
        return arguments


@program_of.register(PoplarExecutor)
def _program_of_executor(executor: PoplarExecutor) -> Program:
    return executor._modelled_program()


@program_of_module.register(Options)
def _program_of_module(options: Options, model: Any, inputs: Any, **more: Any) -> Program:
    # The performance model is imported when it is asked for, so that `import poptorch` stays quick.
    from poptorch._backend.modelling import module

    return module.program_of_module(options, model, inputs, **more)
