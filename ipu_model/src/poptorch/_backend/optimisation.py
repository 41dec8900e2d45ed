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
    """One training executor's optimiser object, with its numbers as the device uses them."""

    def __init__(self, optimizer: torch.optim.Optimizer | None, module: nn.Module, options: Options) -> None:
        if optimizer is None:
            optimizer = optim.SGD(module.parameters(), lr=0.01)
        self._tracker, self._options = OptimizerAttrTracker(options), options
        self.optimizer = optimizer
        self.spec = self._read(optimizer, is_compiled=False)

    def _read(self, optimizer: torch.optim.Optimizer, *, is_compiled: bool) -> OptimiserSpec:
        spec, options = read_spec(optimizer, self._tracker), self._options
        if options._backend.adapts_loss_scaling:
            spec = replace(spec, loss_scaling_variable=True)
        if spec.accum_dtype != FLOAT16 or spec.family == "SGD1":
            return spec
        # Only a running mean keeps float16 accumulators in range.
        running = MeanReductionStrategy.Running
        if options.Training.meanAccumulationAndReplicationReductionStrategy != running:
            if is_compiled:
                raise ValueError(
                    "Invalid optimizer: float16 accumulators need MeanReductionStrategy.Running, but the "
                    "model is already compiled with another strategy. Call destroy() first, or set the "
                    "strategy before compiling."
                )
            options._unfreeze()
            options.Training.setMeanAccumulationAndReplicationReductionStrategy(running)
            options._freeze()
        return spec

    def groups(self, module: nn.Module) -> dict[str, int | None]:
        """Return the parameter group of every parameter of `module` by name; `None` for those in no group."""
        return group_of(self.optimizer, dict(module.named_parameters()))

    @property
    def stateful(self) -> optim.Optimizer | None:
        # Those of torch cannot hold the device's state.
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

    def replace(self, optimizer: torch.optim.Optimizer, updates: Updates | None) -> None:
        """Use the numbers of `optimizer` from the next call on; `updates` are those of the compiled program, if any."""
        spec = self._read(optimizer, is_compiled=updates is not None)
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
    """The weight updates of one compiled program, and the transfer of their state to and from the optimiser."""

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

    def upload_pending(self) -> None:
        """Send state and numbers of a loaded checkpoint to the device, if there are any."""
        optimizer = self._optimisation.stateful
        pending = None if optimizer is None else optimizer._take_pending()
        if optimizer is None or pending is None:
            return
        state = pending.state
        try:
            warnings = [] if state is None else self._load_factor(state.get(FACTOR))
            rest = None if state is None else {name: tensor for name, tensor in state.items() if name != FACTOR}
            warnings += self._updater.load_state(rest, pending.parameters)
        except Error:
            # The loaded state is still pending: the next attempt must use it.
            optimizer._pending = pending
            raise
        for warning in warnings:
            logger.warning(warning)
        self._session.loss_scaling = self._updater.loss_scaling

    def _load_factor(self, factor: Tensor | None) -> list[str]:
        automatic = self._session.automatic
        if automatic is None:
            return [] if factor is None else [f"ignoring unexpected state {FACTOR}: the compiled program has none"]
        if factor is None:
            return [f"ignoring missing state {FACTOR}: the device keeps its value"]
        automatic.factor = float(factor)
        return []

    def bind(self) -> None:
        updater, automatic, optimizer = self._updater, self._session.automatic, self._optimisation.stateful

        def read() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            own = {} if automatic is None else {FACTOR: torch.tensor(automatic.factor)}
            return {**updater.read_state(), **own}, updater.parameters()

        if optimizer is not None:
            optimizer._bind(read)
