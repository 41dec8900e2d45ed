"""What all of PopTorch's optimisers have in common: options for the device, and state that lives there."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ipu_model.errors import require

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object  # A mixin: the concrete classes name their PyTorch optimiser as the second base.

ACCUMULATOR_DTYPES = (torch.float32, torch.float16)
ACCUMULATOR_RULE = "Accumulation types must be either torch.float32 or torch.float16"

Tensors = dict[str, Tensor]
Reader = Callable[[], tuple[Tensors, Tensors]]


class VariableAttributes:
    """The variable (streamed) and constant (compiled in) attributes of one optimiser, to change before compiling."""

    def __init__(self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]) -> None:
        self._allowed_attributes = list(allowed_attributes)
        self._variable_attributes = [name for name in self._allowed_attributes if name in set(variable_attributes)]

    def isConstant(self, attr: str) -> bool:
        """Return whether the value of `attr` is compiled in; what is not streamed is, even an unknown name."""
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Compile the value of `attr` in; changing it later is an error."""
        if not self.isConstant(self._known(attr)):
            self._variable_attributes.remove(attr)

    def markAsVariable(self, attr: str) -> None:
        """Stream `attr`, so that a new value takes effect with the next `setOptimizer`."""
        if self.isConstant(self._known(attr)):
            self._variable_attributes.append(attr)

    def _known(self, attr: str) -> str:
        known = ", ".join(sorted(self._allowed_attributes))
        require(attr in self._allowed_attributes, f"Unknown attribute {attr!r}: this optimizer has {known}.")
        return attr


@dataclass(frozen=True)
class DeviceState:
    """Optimiser state and streamed scalars by name; None where there are none."""

    state: Tensors | None = None
    parameters: Tensors | None = None


class Optimizer(_Base):
    """The first base of every PopTorch optimiser; no optimiser by itself."""

    # Class attributes are the state of an optimiser that never met a device.
    _held: DeviceState = DeviceState()
    _stale: bool = False
    _pending: DeviceState | None = None
    _reader: Reader | None = None
    _options: tuple[str, ...] = ()

    loss_scaling: float
    variable_attrs: VariableAttributes

    def _set_options(self, variable: Iterable[str], loss_scaling: float | None, **options: Any) -> None:
        """Store the device's options; `variable` names the hyper-parameters that were passed explicitly."""
        names = set(variable)
        if loss_scaling is not None:
            require_number("loss_scaling", loss_scaling)
            names.add("loss_scaling")
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        for name, value in options.items():
            setattr(self, name, value)
        self._options = ("loss_scaling", *options)
        self.variable_attrs = VariableAttributes(names, [*self.defaults, "loss_scaling"])

    def __init__(self) -> None:
        """Make the base alone: concrete classes call the constructor of PyTorch's class."""

    def state_dict(self) -> dict[str, Any]:
        """Return PyTorch's state dict with the device's state in `ipu_state` and its scalars in `ipu_param`.

        Both are None before the program is compiled. The device is read at most once between two runs.
        """
        return {**self.get_state_dict(), **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the parameter groups now, and the device's state at the next run."""
        if not state:
            raise RuntimeError(
                "Cannot load optimizer state dictionary because it is empty. Pass the result of state_dict()."
            )
        if not {"ipu_state", "ipu_param"} <= state.keys():
            raise RuntimeError(
                "Only IPU optimizer states can be loaded onto the IPU: this dictionary has no 'ipu_state' or "
                "'ipu_param'. Use the state_dict() of a poptorch.optim optimizer."
            )
        super().load_state_dict(dict(state))
        self.set_state_dict(state)

    def get_state_dict(self) -> dict[str, Any]:
        """Return the part of `state_dict` that is the device's."""
        self._read_if_stale()
        parts = {"ipu_state": self._held.state, "ipu_param": self._held.parameters}
        return {name: None if tensors is None else dict(tensors) for name, tensors in parts.items()}

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the device's part of a state dict at the next run."""
        self._held = DeviceState(_cloned(state["ipu_state"]), _cloned(state["ipu_param"]))
        self._stale = False
        self._pending = None if self._held == DeviceState() else self._held

    def has_state(self) -> bool:
        """Return whether there is state of the device."""
        self._read_if_stale()
        return self._held.state is not None

    def __getstate__(self) -> dict[str, Any]:
        self._read_if_stale()
        names = (*self._options, "_options", "_held", "_pending")
        kept = {name: getattr(self, name) for name in names}
        return {**super().__getstate__(), **kept, "variable_attrs": copy.deepcopy(self.variable_attrs)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # PyTorch's load_state_dict comes here too, with groups and host state only.
        if "_held" in state and self._pending is None:
            self._pending = _state_alone(self._held)

    def _bind(self, reader: Reader) -> None:
        """After compiling or attaching, read device state through `reader`; what is held is current until a run."""
        self._reader = reader
        self._stale = self._stale or self._held == DeviceState()

    def _unbind(self) -> None:
        """Before detaching or replacement, keep the device's state for the next attach, and forget the device."""
        if self._reader is not None:
            self._read_if_stale()
            self._reader = None
            self._pending = self._pending or _state_alone(self._held)

    def _take_pending(self) -> DeviceState | None:
        """Return what is to be copied to the device before a run or at attaching, once; None if there is nothing."""
        pending, self._pending = self._pending, None
        return pending

    def _drop_pending_parameters(self) -> None:
        """Upload no scalars of a checkpoint, because the executor has read newer ones from Python."""
        if self._pending is not None:
            self._pending = _state_alone(self._pending)

    def _invalidate(self) -> None:
        self._stale = self._reader is not None

    def _read_if_stale(self) -> None:
        if self._stale and self._reader is not None:
            self._held = DeviceState(*self._reader())
            self._stale = False


def _state_alone(held: DeviceState) -> DeviceState | None:
    """Leave out the scalars: a later executor reads those from Python."""
    return None if held.state is None else DeviceState(held.state)


def _cloned(tensors: Mapping[str, Tensor] | None) -> Tensors | None:
    return None if tensors is None else {name: tensor.clone() for name, tensor in tensors.items()}


def given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


# Infinity means that there is no limit. PopTorch refuses a limit of NaN, and a scaling of 0, when it compiles.
_SCALINGS, _LIMITS = ("loss_scaling", "velocity_scaling"), ("max_grad_norm", "max_weight_norm")


def require_number(name: str, value: object) -> None:
    """Raise AssertionError for what is no number, ValueError for numbers that no device can train with."""
    if not isinstance(value, Real):
        nearest = f"Use float({name})." if isinstance(value, torch.Tensor) else "Pass an int or a float."
        raise AssertionError(f"Expected a number for {name}, not {value!r} of type {type(value).__name__}. {nearest}")
    number = float(value)
    if number < 0 and name in _SCALINGS + _LIMITS:
        raise ValueError(f"Invalid {name}: {value}; it must not be negative.")
    if not math.isfinite(number) and name not in _LIMITS:
        raise ValueError(f"Invalid {name}: {value}; it must be finite.")


def require_numbers(arguments: Mapping[str, Any]) -> None:
    """Raise AssertionError unless every argument is a number, and `betas` a tuple of two of them."""
    for name, value in arguments.items():
        if name != "betas":
            require_number(name, value)
            continue
        if not isinstance(value, tuple) or len(value) != 2:
            raise AssertionError(f"Expected a tuple of two numbers for betas, such as (0.9, 0.999), not {value!r}.")
        for index, beta in enumerate(value):
            require_number(f"betas[{index}]", beta)


def checked_dtypes(**dtypes: torch.dtype | None) -> dict[str, torch.dtype]:
    """Return the dtypes of accumulators, float32 for None; raise AssertionError for any but float32 and float16."""
    chosen = {name: torch.float32 if dtype is None else dtype for name, dtype in dtypes.items()}
    for name, dtype in chosen.items():
        require(dtype in ACCUMULATOR_DTYPES, f"{ACCUMULATOR_RULE}, but {name} is {dtype}.")
    return chosen


def moment_dtypes(*dtypes: torch.dtype | None) -> dict[str, torch.dtype]:
    names = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")
    return checked_dtypes(**dict(zip(names, dtypes, strict=True)))
