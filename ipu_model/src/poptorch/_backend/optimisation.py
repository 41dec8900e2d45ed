"""The executor's side of an optimiser: reading its numbers, moving its state, making updates, scaling the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ipu_model.compute.loss_scaling import FACTOR, LossScalingSettings
from ipu_model.compute.optimisers.rules import scalar_names
from ipu_model.compute.optimisers.updater import Updater
from ipu_model.compute.session import Session
from ipu_model.errors import Error
from ipu_model.graph import Graph
from ipu_model.optimiser import OptimiserSpec
from ipu_model.step import FLOAT16
from poptorch import optim
from poptorch._impl import createPoptorchError
from poptorch._logging import logger
from poptorch.enums import MeanReductionStrategy, ReductionType
from poptorch.optim.optimizer import DeviceState
from poptorch.optim.read import AttributeNames, group_of, read_spec
from poptorch.options import Options
from poptorch.options.backend_settings import LOSS_SCALING

if TYPE_CHECKING:
    from poptorch.options import Options


class Optimisation:
    """One training executor's optimiser; `connect` ties it to a compiled program."""

    def __init__(self, optimizer: torch.optim.Optimizer | None, module: nn.Module, options: Options) -> None:
        if optimizer is None:
            optimizer = optim.SGD(module.parameters(), lr=0.01)
        self._optimizer = optimizer
        self._names = AttributeNames()
        self._relax = options._relax_optimizer_checks
        self._automatic = options._backend.adapts_loss_scaling
        self._spec = self._read(optimizer)
        self._session: Session | None = None
        self._updater: Updater | None = None
        self._make: Callable[[], Updater] | None = None
        if self._needs_running_mean:
            _use_running_mean(options)

    def _read(self, optimizer: torch.optim.Optimizer) -> OptimiserSpec:
        spec = read_spec(optimizer, relax=self._relax, attribute_names=self._names)
        return replace(spec, loss_scaling_variable=True) if self._automatic else spec

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The program's optimiser."""
        return self._optimizer

    @property
    def spec(self) -> OptimiserSpec:
        """The optimiser as the device knows it, with its present numbers."""
        return self._spec

    def groups(self, module: nn.Module) -> dict[str, int | None]:
        """Return the parameter group of every parameter of `module` by name; `None` for those in no group.

        Raises:
            KeyError: a parameter group holds a tensor that is no parameter of the model.
        """
        return group_of(self._optimizer, dict(module.named_parameters()))

    def number_names(self, graph: Graph, module: nn.Module, options: Options) -> list[str]:
        """Return the names of the numbers that updates of the program of `module` read.

        Raises:
            KeyError: as `groups`.
        """
        accumulates = options.Training.gradient_accumulation > 1
        return scalar_names(self._spec, graph.gradients, self.groups(module), accumulates=accumulates)

    @property
    def half_accumulators(self) -> bool:
        """Whether gradients are accumulated in float16."""
        return self._spec.accum_dtype == FLOAT16

    @property
    def clips_gradients(self) -> bool:
        """Whether gradients are limited by a norm."""
        return self._spec.max_grad_norm != math.inf

    @property
    def _needs_running_mean(self) -> bool:
        return self.half_accumulators and self._spec.family != "SGD1"

    @property
    def has_pending(self) -> bool:
        """Whether state from `load_state_dict` waits for the next run."""
        return isinstance(self._optimizer, optim.Optimizer) and self._optimizer._has_pending

    def connect(self, session: Session, graph: Graph, module: nn.Module, options: Options, seed: int) -> None:
        """Make the updater for a freshly compiled program.

        Raises:
            KeyError: a parameter group holds a tensor that is no parameter of the model.
        """
        groups = self.groups(module)
        weights = {name: session.weights[name] for name in graph.gradients}
        dtypes = {v.name: v.spec.dtype for v in graph.variables}
        stochastic = options._backend.stochastic_rounding
        generator = torch.Generator().manual_seed(seed)
        if stochastic:
            session.randomness.keep(generator, reseeded=options.Distributed.numProcesses == 1)

        def make() -> Updater:
            return Updater(
                self._spec, weights, {n: dtypes[n] for n in weights}, {n: groups[n] for n in weights},
                accumulates=options.Training.gradient_accumulation > 1,
                stochastic_rounding=stochastic, generator=generator,
            )  # fmt: skip

        self._session, self._make = session, make
        self._renew()

    def attach(self) -> None:
        """Upload state that the optimiser holds; afterwards its `state_dict()` reads the device."""
        self.upload_pending()
        self._bind()

    def upload_pending(self) -> None:
        """Send state and numbers of a loaded checkpoint to the device, if there are any."""
        optimizer = self._optimizer
        if not isinstance(optimizer, optim.Optimizer) or self._updater is None or self._session is None:
            return
        pending = optimizer._take_pending()
        if pending is None:
            return
        state, parameters = pending
        try:
            warnings = self._load_factor(state) + self._updater.load_state(_without_factor(state), parameters)
        except Error:
            # What was loaded is still what the program asked for: the next attempt must not pass over it.
            optimizer._pending = DeviceState(*pending)
            raise
        for warning in warnings:
            logger.warning(warning)
        self._session.loss_scaling = self._updater.loss_scaling

    def _load_factor(self, state: dict[str, Tensor] | None) -> list[str]:
        """Continue with the factor of automatic loss scaling that a checkpoint holds; return warnings."""
        automatic = None if self._session is None else self._session.automatic
        known = state is not None and FACTOR in state
        if automatic is not None and state is not None and known:
            automatic.factor = float(state[FACTOR])
        if state is None or known == (automatic is not None):
            return []
        return [
            f"ignoring unexpected state {FACTOR}: the compiled program has none"
            if known
            else f"ignoring missing state {FACTOR}: the device keeps its value"
        ]

    def detach(self) -> None:
        """Read the device's state back into the optimiser; torch's own optimisers cannot hold it."""
        if isinstance(self._optimizer, optim.Optimizer):
            self._optimizer._unbind()

    def weights_replaced(self) -> None:
        """Note that all weights were uploaded: the state of a torch.optim optimiser then starts anew."""
        if not isinstance(self._optimizer, optim.Optimizer) and self._make is not None:
            self._renew()

    def release(self) -> None:
        """Forget the compiled program."""
        self._session, self._updater, self._make = None, None, None

    def after_run(self) -> None:
        """Note that a run has changed the device's state."""
        if isinstance(self._optimizer, optim.Optimizer):
            self._optimizer._invalidate()

    def replace(self, optimizer: torch.optim.Optimizer, options: Options, *, compiled: bool) -> None:
        """Read the numbers of `optimizer` (the same object or another) and use them from the next call on.

        Raises:
            ValueError: half accumulators after compilation with another mean strategy than `Running`.
            Error: a change of something that is compiled in.
        """
        spec = self._read(optimizer)
        strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
        running = spec.accum_dtype == FLOAT16 and spec.family != "SGD1"
        if running and strategy != MeanReductionStrategy.Running:
            if compiled:
                raise ValueError(
                    "Invalid optimizer: float16 accumulators need MeanReductionStrategy.Running, but the "
                    "model is already compiled with another strategy. Call destroy() first, or set the "
                    "strategy before compiling."
                )
            _use_running_mean(options)
        if self._updater is not None and self._session is not None:
            self._updater.set_spec(spec)
            self._session.loss_scaling = self._updater.loss_scaling
        if optimizer is not self._optimizer:
            bound = self._updater is not None
            self.detach()
            self._optimizer = optimizer
            if bound:
                self._bind()
        if isinstance(optimizer, optim.Optimizer):
            optimizer._drop_pending_parameters()
        self._spec = spec

    def _bind(self) -> None:
        updater, session = self._updater, self._session
        if not isinstance(self._optimizer, optim.Optimizer) or updater is None or session is None:
            return
        automatic = session.automatic

        def read() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            own = {} if automatic is None else {FACTOR: torch.tensor(automatic.factor)}
            return {**updater.read_state(), **own}, updater.parameters()

        self._optimizer._bind(read)

    def _renew(self) -> None:
        assert self._make is not None
        assert self._session is not None
        self._updater = self._make()
        self._session.update, self._session.numbers = self._updater, self._updater.parameters
        self._session.loss_scaling = self._updater.loss_scaling
        if self._session.automatic is not None:
            self._session.automatic.factor = 1.0


def _without_factor(state: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
    return None if state is None else {name: tensor for name, tensor in state.items() if name != FACTOR}


def _use_running_mean(options: Options) -> None:
    """Switch the executor's own options to a running mean, in which float16 accumulators stay in range."""
    frozen = options._is_frozen
    options._unfreeze()
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running)
    if frozen:
        options._freeze()


def loss_scaling_settings(graph: Graph, options: Options) -> LossScalingSettings | None:
    """Return how the loss scaling of a training program adapts, or `None` if it does not.

    Raises:
        Error: no trained float16 weight whose gradients could be watched, or settings outside their range.
    """
    if not options._backend.adapts_loss_scaling:
        return None
    if not any(v.spec.dtype is torch.float16 and v.name in graph.gradients for v in graph.variables):
        raise createPoptorchError(
            "Training.setAutomaticLossScaling watches the gradients of float16 weights, and the model trains none. "
            "Convert the model with half(), or leave automatic loss scaling off."
        )
    if options.Training.accumulation_and_replication_reduction_type != ReductionType.Mean:
        logger.warning(
            "Automatic loss scaling expects "
            "Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)."
        )
    settings = options._backend.loss_scaling
    for name, share in (
        ("binEdgeLocation", settings.bin_edge),
        ("thresholdUpperCountProportion", settings.threshold),
    ):
        if not 0.0 <= share <= 1.0:
            raise createPoptorchError(f"{LOSS_SCALING}.{name} is a proportion between 0 and 1, not {share}.")
    if settings.period < 1:
        raise createPoptorchError(f"{LOSS_SCALING}.updatePeriod must be at least 1, not {settings.period}.")
    return settings
