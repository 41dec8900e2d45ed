"""The executor's side of an optimiser: reading its numbers, moving its state, making updates, scaling the loss."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ipu_model.capture.graph import Graph
from ipu_model.compute.gradients import FACTOR
from ipu_model.compute.session import Session
from ipu_model.compute.updater import Updater
from ipu_model.errors import Error
from ipu_model.optimiser import OptimiserSpec
from ipu_model.step import FLOAT16
from poptorch import optim
from poptorch._logging import logger
from poptorch._optimizer_attributes import OptimizerAttrTracker, group_of, read_spec
from poptorch.enums import MeanReductionStrategy
from poptorch.options import Options


class Optimisation:
    """One training executor's optimiser object, with its numbers as the device uses them.

    `optimizer=None` means `poptorch.optim.SGD(module.parameters(), lr=0.01)`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None, module: nn.Module, options: Options) -> None:
        if optimizer is None:
            optimizer = optim.SGD(module.parameters(), lr=0.01)
        self._tracker = OptimizerAttrTracker(options)
        self._automatic = options._backend.adapts_loss_scaling
        self.optimizer = optimizer
        self.spec = self._read(optimizer)
        if _needs_running_mean(self.spec):
            _use_running_mean(options)

    def _read(self, optimizer: torch.optim.Optimizer) -> OptimiserSpec:
        spec = read_spec(optimizer, self._tracker)
        return replace(spec, loss_scaling_variable=True) if self._automatic else spec

    def groups(self, module: nn.Module) -> dict[str, int | None]:
        """Return the parameter group of every parameter of `module` by name; `None` for those in no group.

        Raises `KeyError`: a parameter group holds a tensor that is no parameter of the model.
        """
        return group_of(self.optimizer, dict(module.named_parameters()))

    @property
    def stateful(self) -> optim.Optimizer | None:
        """The optimiser, if it can hold the device's state: torch's own cannot."""
        return self.optimizer if isinstance(self.optimizer, optim.Optimizer) else None

    @property
    def has_pending(self) -> bool:
        """Whether state from `load_state_dict` waits for the next run."""
        return self.stateful is not None and self.stateful._pending is not None

    def detach(self) -> None:
        if self.stateful is not None:
            self.stateful._unbind()

    def after_run(self) -> None:
        if self.stateful is not None:
            self.stateful._invalidate()

    def replace(self, optimizer: torch.optim.Optimizer, options: Options, updates: Updates | None) -> None:
        """Read the numbers of `optimizer` (the same object or another) and use them from the next call on.

        `updates` are those of the compiled program, if there is one. Raises `ValueError`: half accumulators after
        compilation with another mean strategy than `Running`; `Error`: a change of something that is compiled in.
        """
        spec = self._read(optimizer)
        strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
        if _needs_running_mean(spec) and strategy != MeanReductionStrategy.Running:
            if updates is not None:
                raise ValueError(
                    "Invalid optimizer: float16 accumulators need MeanReductionStrategy.Running, but the "
                    "model is already compiled with another strategy. Call destroy() first, or set the "
                    "strategy before compiling."
                )
            _use_running_mean(options)
        if updates is not None:
            updates.set_spec(spec)
        if optimizer is not self.optimizer:
            self.detach()
            self.optimizer = optimizer
            if updates is not None:
                updates.bind()
        if self.stateful is not None:
            self.stateful._drop_pending_parameters()
        self.spec = spec


class Updates:
    """The weight updates of one compiled program, and the transfer of their state to and from the optimiser.

    Raises `KeyError`: a parameter group holds a tensor that is no parameter of the model.
    """

    def __init__(
        self, optimisation: Optimisation, session: Session, graph: Graph, module: nn.Module, options: Options, seed: int
    ) -> None:
        self._optimisation, self._session = optimisation, session
        groups = optimisation.groups(module)
        dtypes = {v.name: graph.spec(v.tensor).dtype for v in graph.variables}
        self._weights = {name: session.weights[name] for name in graph.gradients}
        self._dtypes = {name: dtypes[name] for name in self._weights}
        self._groups = {name: groups[name] for name in self._weights}
        self._stochastic = options._backend.stochastic_rounding
        self._generator = torch.Generator().manual_seed(seed)
        if self._stochastic:
            session.randomness.keep(self._generator, reseeded=options.Distributed.numProcesses == 1)
        self._updater = self._started()

    def _started(self) -> Updater:
        updater = Updater(
            self._optimisation.spec,
            self._weights,
            self._dtypes,
            self._groups,
            stochastic_rounding=self._stochastic,
            generator=self._generator,
            overflow=self._session.arithmetic.overflow,
        )
        self._session.update, self._session.numbers = updater.step, updater.parameters
        self._session.loss_scaling = updater.loss_scaling
        if self._session.automatic is not None:
            self._session.automatic.factor = 1.0
        return updater

    def set_spec(self, spec: OptimiserSpec) -> None:
        self._updater.set_spec(spec)
        self._session.loss_scaling = self._updater.loss_scaling

    def weights_replaced(self) -> None:
        """Note that all weights were uploaded: the state of a torch.optim optimiser then starts anew."""
        if self._optimisation.stateful is None:
            self._updater = self._started()

    def attach(self) -> None:
        self.upload_pending()
        self.bind()

    def upload_pending(self) -> None:
        """Send state and numbers of a loaded checkpoint to the device, if there are any."""
        optimizer = self._optimisation.stateful
        pending = None if optimizer is None else optimizer._take_pending()
        if optimizer is None or pending is None:
            return
        state = pending.state
        rest = None if state is None else {name: tensor for name, tensor in state.items() if name != FACTOR}
        try:
            warnings = self._load_factor(state) + self._updater.load_state(rest, pending.parameters)
        except Error:
            # The loaded state is still pending: the next attempt must use it.
            optimizer._pending = pending
            raise
        for warning in warnings:
            logger.warning(warning)
        self._session.loss_scaling = self._updater.loss_scaling

    def _load_factor(self, state: dict[str, Tensor] | None) -> list[str]:
        automatic = self._session.automatic
        if state is None:
            return []
        if automatic is None:
            return [f"ignoring unexpected state {FACTOR}: the compiled program has none"] if FACTOR in state else []
        if FACTOR not in state:
            return [f"ignoring missing state {FACTOR}: the device keeps its value"]
        automatic.factor = float(state[FACTOR])
        return []

    def bind(self) -> None:
        updater, automatic, optimizer = self._updater, self._session.automatic, self._optimisation.stateful

        def read() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            own = {} if automatic is None else {FACTOR: torch.tensor(automatic.factor)}
            return {**updater.read_state(), **own}, updater.parameters()

        if optimizer is not None:
            optimizer._bind(read)


def _needs_running_mean(spec: OptimiserSpec) -> bool:
    return spec.accum_dtype == FLOAT16 and spec.family != "SGD1"


def _use_running_mean(options: Options) -> None:
    """Switch the executor's own options to a running mean, which keeps float16 accumulators in range."""
    frozen = options._is_frozen
    options._unfreeze()
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running)
    if frozen:
        options._freeze()
