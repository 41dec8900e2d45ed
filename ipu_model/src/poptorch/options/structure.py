"""The frame of `Options`: its sub-options, host-only state, copying, freezing and flattening."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from poptorch.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from poptorch.options.container import OptionsContainer
from poptorch.options.distributed import _DistributedOptions
from poptorch.options.freezing import Freezable
from poptorch.options.jit import _JitOptions
from poptorch.options.popart import _PopartOptions
from poptorch.options.precision import _PrecisionOptions
from poptorch.options.strategies import ExecutionStrategy, PipelinedExecution
from poptorch.options.tensor_locations import _TensorLocationOptions
from poptorch.options.training import _TrainingOptions

if TYPE_CHECKING:
    from typing_extensions import Self

_DEFAULT_LOCATION_EXCLUDES = ("install/poptorch", "site-packages/torch", "site-packages/poptorch")


class OptionsStructure(OptionsContainer):
    """Top-level keys with their defaults, six sub-options, and what stays on the host."""

    _training: _TrainingOptions
    _precision: _PrecisionOptions
    _tensor_locations: _TensorLocationOptions
    _distributed: _DistributedOptions
    _jit: _JitOptions
    _popart: _PopartOptions
    _execution_strategy: ExecutionStrategy
    _show_compilation_progress_bar: bool
    _source_location_excludes: list[str]
    _relax_optimizer_checks: bool
    _module_namescope_enabled: bool

    def __init__(self) -> None:
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
        popart_options = _PopartOptions()
        self._declare(
            _popart=popart_options,
            _training=_TrainingOptions(popart_options),
            _precision=_PrecisionOptions(popart_options),
            _tensor_locations=_TensorLocationOptions(),
            _distributed=_DistributedOptions(),
            _jit=_JitOptions(),
            _execution_strategy=PipelinedExecution(),
            _show_compilation_progress_bar=True,
            _source_location_excludes=list(_DEFAULT_LOCATION_EXCLUDES),
            _relax_optimizer_checks=False,
            _module_namescope_enabled=True,
        )

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
        """Settings under the backend's own names."""
        return self._popart

    def clone(self) -> Self:
        """Return an independent copy that can be changed, also where this object is frozen."""
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
        """Return everything the backend is told, as one flat dict.

        Raises `AssertionError` while the output mode is `Default`, or if `_Popart` has a key of PopTorch's.
        """
        assert not self.defaultOutputMode(), (
            "An output mode must be picked before options are handed over: call outputMode() or wrap a model."
        )
        flat = dict(self._popart.options)
        for part in (
            self,
            self._training,
            self._precision,
            self._distributed,
            self._tensor_locations,
            self._jit,
        ):
            part.update(flat)
        emitted = self._execution_strategy.backendOptions()
        common = sorted(set(flat) & set(emitted))
        assert not common, f"The strategy and the options have keys in common: {', '.join(common)}."
        return {**flat, **emitted}

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

    def _sub_options(self) -> tuple[Freezable, ...]:
        return (
            self._distributed,
            self._jit,
            self._precision,
            self._tensor_locations,
            self._training,
            self._popart,
        )

    def _repr_of_the_rest(self) -> str:
        names = ("Distributed", "Jit", "Precision", "TensorLocations", "Training", "_Popart")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
