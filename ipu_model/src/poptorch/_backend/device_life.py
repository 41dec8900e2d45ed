"""The executor's life cycle: attaching, detaching, destroying, and the traffic of weights they cause."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ipu_model.compute.session import Reduction, Session
from ipu_model.graph import Graph
from ipu_model.interrupts import postponed
from poptorch._backend.turns import in_turn
from poptorch._impl import createPoptorchError
from poptorch.enums import ConnectionType, ReductionType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipu_model.instances import Group
    from ipu_model.turns import Turn
    from poptorch._backend.optimisation import Optimisation
    from poptorch._backend.weights import HostWeights
    from poptorch._backend.wrapping import HostLink, Wrapping
    from poptorch.options import Options

_logger = logging.getLogger("poptorch::python")


class DeviceLife:
    """The part of `PoplarExecutor` that owns the device copy of the weights.

    `_dirty` means the device has newer weights than the host; `_link.version` counts the host's versions, so
    that an inference executor tied to this one knows when to upload (its `_sources` are the links of those it
    is tied to).
    """

    _turn: Turn
    _user_model: nn.Module
    _options: Options
    _training: bool
    _session: Session | None
    _host: HostWeights
    _link: HostLink
    _optimisation: Optimisation | None
    _wrapping: Wrapping | None
    _sources: Sequence[HostLink]
    _uploaded_versions: list[int]
    _attached: bool
    _dirty: bool
    _has_run: bool
    _rng_state: list[int] | None
    _graph: Graph | None
    _captured: Graph | None
    _arguments: Any
    _anchored: dict[str, Tensor]
    _forget_model: Callable[[], None]
    _group: Group | None

    # --- attachment
    # -------------------------------------------------------------------------------------------

    @in_turn
    def attachToDevice(self) -> None:
        """Take the device and upload weights, optimiser state and random state.

        Raises:
            Error: not compiled, or attached already.
            AssertionError: an offline target.
        """
        self._require_compiled()
        assert self._options.connection_type != ConnectionType.Never, "Trying to attach to an offline device."
        if self._attached:
            raise createPoptorchError("Device is already attached.")
        self._attach()

    def _attach(self) -> None:
        assert self._session is not None
        self._refresh_sources()
        if self._optimisation is not None and self._has_run:
            self._optimisation.weights_replaced()
        self._upload_weights()
        if self._rng_state is not None:
            self._session.randomness.restore(self._rng_state)
        if self._optimisation is not None:
            self._optimisation.attach()
        self._attached = True

    @in_turn
    def detachFromDevice(self) -> None:
        """Bring weights, optimiser and random state back (inference: random state only), free the device.

        Raises:
            Error: not compiled or not attached.
        """
        self._require_compiled()
        if not self._attached:
            raise createPoptorchError("Device is not attached.")
        assert self._session is not None
        self._bring_state_back()
        self._rng_state = self._session.randomness.state()
        self._attached = False

    def _bring_state_back(self) -> None:
        if self._training:
            self.copyWeightsToHostIfNeeded()
        if self._optimisation is not None:
            self._optimisation.detach()

    def isAttachedToDevice(self) -> bool:
        """Whether the executor holds the device."""
        return self._attached

    @in_turn
    @postponed()
    def destroy(self) -> None:
        """Bring state back to the host and drop the executable; a training model is unwrapped."""
        if self._session is None:
            return
        if self._attached:
            self._bring_state_back()
        self._drop_executable()
        if self._wrapping is not None:
            self._wrapping.undo()

    def _drop_executable(self) -> None:
        self._session, self._graph, self._captured, self._arguments = None, None, None, None
        self._anchored = {}
        self._forget_model()
        self._attached = self._dirty = self._has_run = False
        if self._optimisation is not None:
            self._optimisation.release()

    # --- weights
    # ----------------------------------------------------------------------------------------------

    @in_turn
    def copyWeightsToHost(self) -> None:
        """Copy the device's weights and buffers into the user's module.

        Raises:
            Error: not compiled, or not attached.
        """
        self._require_attached("copyWeightsToHost")
        self._download_weights()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copy the weights to the host if the device has newer ones; return whether that was so."""
        if not self._device_is_newer():
            return False
        with self._turn.lock:
            # Another thread may have done it, or destroyed the executable, meanwhile.
            newer = self._device_is_newer()
            if newer:
                self._download_weights()
            return newer

    def _device_is_newer(self) -> bool:
        return self._dirty and self._attached

    @in_turn
    def copyWeightsToDevice(self) -> None:
        """Copy the user's module's weights to the device, discarding newer ones there.

        Raises:
            Error: not compiled, or not attached.
        """
        self._require_attached("copyWeightsToDevice")
        if self._optimisation is not None:
            self._optimisation.weights_replaced()
        self._upload_weights()
        self._link.version += 1

    @in_turn
    def copyNamedBuffersToDevice(self) -> None:
        """Upload only the buffers that `Options.updatableNamedBuffers` names.

        Raises:
            Error: not compiled, not attached, or none named.
        """
        self._require_attached("copyNamedBuffersToDevice")
        names = self._options._backend.updatable_buffers
        if not names:
            raise createPoptorchError(
                "No named buffers marked as updatable. Name them in "
                "poptorch.Options().updatableNamedBuffers([...]) first."
            )
        assert self._session is not None
        assert self._graph is not None
        self._session.upload(self._host.values(tuple(v for v in self._graph.variables if set(v.names) & set(names))))

    @in_turn
    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """Load into the user's module, then upload if attached; return torch's report of keys that differ."""
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self._attached:
            self.copyWeightsToDevice()
        return result

    @torch.inference_mode(False)
    def _upload_weights(self) -> None:
        assert self._session is not None
        assert self._graph is not None
        self._session.upload(self._host.values(self._graph.variables))
        self._dirty = False
        self._uploaded_versions = [source.version for source in self._sources]

    @torch.inference_mode(False)
    def _download_weights(self) -> None:
        assert self._session is not None
        self._host.store(self._session.download())
        self._dirty = False
        self._link.version += 1

    def _refresh_sources(self) -> None:
        """Let the training executors this one is tied to bring newer weights to the host."""
        for source in self._sources:
            source.refresh()

    def _bring_up_to_date(self) -> None:
        """Before a run: upload weights that a tied training executor has changed, and pending state."""
        self._refresh_sources()
        if self._uploaded_versions != [source.version for source in self._sources]:
            self._upload_weights()
        if self._optimisation is not None and self._optimisation.has_pending:
            self.copyWeightsToHostIfNeeded()
            self._upload_weights()
            self._optimisation.upload_pending()

    # --- optimiser and random state
    # ---------------------------------------------------------------------------

    @in_turn
    def setOptimizer(self, optimizer: Any) -> None:
        """Use the present settings of `optimizer` from the next call on.

        Raises:
            Error: a change that needs a new compilation, or an inference model.
            ValueError: a float16 accumulator set after compilation with another mean strategy.
        """
        if self._optimisation is None:
            raise createPoptorchError("setOptimizer: an inference model has no optimizer. Use poptorch.trainingModel.")
        self._optimisation.replace(optimizer, self._options, compiled=self._session is not None)

    @property
    def rng_state(self) -> list[int] | None:
        """Seed and state words of the device's random streams; `None` before the first run without a seed."""
        self._require_compiled()
        assert self._session is not None
        return self._session.randomness.state() if self._attached and self._has_run else self._rng_state

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._require_compiled()
        assert self._session is not None
        state = list(state)
        self._session.randomness.check(state)
        self._rng_state = state
        if self._attached:
            self._session.randomness.restore(self._rng_state)

    def _reduction(self) -> Reduction:
        training = self._options.Training
        half = self._optimisation is not None and self._optimisation.half_accumulators
        strategy = training.meanAccumulationAndReplicationReductionStrategy
        mean = training.accumulation_and_replication_reduction_type == ReductionType.Mean
        reduction = Reduction(mean=mean, running=mean and strategy.name == "Running", half=half)
        where = self._options.Distributed
        if self._group is None:
            return replace(reduction, process=where.processId)
        sum_ = partial(self._group.sum_, what="gradients")
        return replace(reduction, process=where.processId, processes=where.numProcesses, across=sum_)

    def _require_compiled(self) -> None:
        if self._session is None:
            raise createPoptorchError(
                "Model has not been compiled or has been destroyed. Call the model, or compile() it, first."
            )

    def _require_attached(self, what: str) -> None:
        self._require_compiled()
        if not self._attached:
            raise createPoptorchError(f"{what}: the model is not attached to a device. Call attachToDevice() first.")
