"""PopTorch's optimisers: PyTorch's, plus loss scaling, accumulator types and gradient clipping on the device.

The executor reads their numbers and runs a built-in update of the same family; it never calls `step()`. On
the CPU each class is an ordinary PyTorch optimiser. Arguments that are not passed are compiled in as constants.
Constructors raise AssertionError for non-numbers and for accumulator types other than float32 and float16, ValueError
for numbers out of range.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from ipu_model.compute.rounding import Rounding
from ipu_model.compute.update_rules import Context, Entry, Lamb
from ipu_model.errors import require
from ipu_model.optimiser import Algorithm, Hyper, WeightUpdate
from poptorch._logging import logger

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]

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
class _DeviceState:
    """Optimiser state and streamed scalars by name; None where there are none."""

    state: Tensors | None = None
    parameters: Tensors | None = None


class Optimizer(_Base):
    """The first base of every PopTorch optimiser; no optimiser by itself."""

    # Class attributes are the state of an optimiser that never met a device.
    _held: _DeviceState = _DeviceState()
    _stale: bool = False
    _pending: _DeviceState | None = None
    _reader: Reader | None = None
    _options: tuple[str, ...] = ()

    loss_scaling: float
    variable_attrs: VariableAttributes

    def _set_options(self, variable: Iterable[str], loss_scaling: float | None, **options: Any) -> None:
        """Store the device's options; `variable` names the hyper-parameters that were passed explicitly."""
        names = set(variable)
        if loss_scaling is not None:
            _require_number("loss_scaling", loss_scaling)
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
        self._held = _DeviceState(_cloned(state["ipu_state"]), _cloned(state["ipu_param"]))
        self._stale = False
        self._pending = None if self._held == _DeviceState() else self._held

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
        self._stale = self._stale or self._held == _DeviceState()

    def _unbind(self) -> None:
        """Before detaching or replacement, keep the device's state for the next attach, and forget the device."""
        if self._reader is not None:
            self._read_if_stale()
            self._reader = None
            self._pending = self._pending or _state_alone(self._held)

    def _take_pending(self) -> _DeviceState | None:
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
            self._held = _DeviceState(*self._reader())
            self._stale = False


def _state_alone(held: _DeviceState) -> _DeviceState | None:
    """Leave out the scalars: a later executor reads those from Python."""
    return None if held.state is None else _DeviceState(held.state)


def _cloned(tensors: Mapping[str, Tensor] | None) -> Tensors | None:
    return None if tensors is None else {name: tensor.clone() for name, tensor in tensors.items()}


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


# Infinity means that there is no limit. PopTorch refuses a limit of NaN, and a scaling of 0, when it compiles.
_SCALINGS, _LIMITS = ("loss_scaling", "velocity_scaling"), ("max_grad_norm", "max_weight_norm")


def _require_number(name: str, value: object) -> None:
    """Raise AssertionError for what is no number, ValueError for numbers that no device can train with."""
    if not isinstance(value, Real):
        nearest = f"Use float({name})." if isinstance(value, torch.Tensor) else "Pass an int or a float."
        raise AssertionError(f"Expected a number for {name}, not {value!r} of type {type(value).__name__}. {nearest}")
    number = float(value)
    if number < 0 and name in _SCALINGS + _LIMITS:
        raise ValueError(f"Invalid {name}: {value}; it must not be negative.")
    if not math.isfinite(number) and name not in _LIMITS:
        raise ValueError(f"Invalid {name}: {value}; it must be finite.")


def _require_numbers(arguments: Mapping[str, Any]) -> None:
    """Raise AssertionError unless every argument is a number, and `betas` a tuple of two of them."""
    for name, value in arguments.items():
        if name != "betas":
            _require_number(name, value)
            continue
        if not isinstance(value, tuple) or len(value) != 2:
            raise AssertionError(f"Expected a tuple of two numbers for betas, such as (0.9, 0.999), not {value!r}.")
        for index, beta in enumerate(value):
            _require_number(f"betas[{index}]", beta)


def _checked_dtypes(**dtypes: torch.dtype | None) -> dict[str, torch.dtype]:
    """Return the dtypes of accumulators, float32 for None; raise AssertionError for any but float32 and float16."""
    chosen = {name: torch.float32 if dtype is None else dtype for name, dtype in dtypes.items()}
    for name, dtype in chosen.items():
        require(dtype in ACCUMULATOR_DTYPES, f"{ACCUMULATOR_RULE}, but {name} is {dtype}.")
    return chosen


def _moment_dtypes(*dtypes: torch.dtype | None) -> dict[str, torch.dtype]:
    names = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")
    return _checked_dtypes(**dict(zip(names, dtypes, strict=True)))


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent with momentum, weight decay, dampening and Nesterov momentum.

        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, loss_scaling=1024.0)

    With `use_combined_accum` one tensor serves as gradient accumulator and velocity, stored multiplied by
    `velocity_scaling`; otherwise they are two tensors of `accum_type` and `velocity_accum_type`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        *,
        fused: bool | None = None,
    ) -> None:
        numbers = _given(momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)
        scaling = _given(velocity_scaling=velocity_scaling)
        _require_numbers({"lr": lr, **numbers, **scaling, **_given(max_grad_norm=max_grad_norm)})
        dtypes = _checked_dtypes(accum_type=accum_type, velocity_accum_type=velocity_accum_type)
        flags = _given(foreach=foreach, maximize=maximize, differentiable=differentiable, fused=fused)
        torch.optim.SGD.__init__(self, params, lr, **numbers, **flags)
        combined = bool(use_combined_accum)
        if combined:
            # A hyper-parameter that PyTorch's class does not know.
            self.defaults |= {"velocity_scaling": 1.0} | scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.defaults["velocity_scaling"])
        elif scaling:
            logger.warning("velocity_scaling is ignored: it is the loss scaling unless use_combined_accum=True.")
        self._set_options(
            {"lr", *numbers, *scaling},
            loss_scaling,
            **dtypes,
            use_combined_accum=combined,
            max_grad_norm=_limit(max_grad_norm),
        )


class Adam(Optimizer, torch.optim.Adam):
    """Adam, with weight decay added to the gradient; `amsgrad` must stay False."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        numbers = _given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        _require_numbers({**numbers, **_given(max_grad_norm=max_grad_norm)})
        dtypes = _moment_dtypes(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type)
        flags = _given(
            foreach=foreach, maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused
        )
        torch.optim.Adam.__init__(self, params, **_with_float_betas(numbers), **flags)
        self._set_options(numbers, loss_scaling, **dtypes, max_grad_norm=_limit(max_grad_norm))


class AdamW(Optimizer, torch.optim.AdamW):
    """Adam with decoupled weight decay; `amsgrad` must stay False.

    `bias_correction=False` has no numerical effect in this release: the device corrects the bias all the same.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        numbers = _given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        _require_numbers({**numbers, **_given(max_grad_norm=max_grad_norm)})
        dtypes = _moment_dtypes(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type)
        flags = _given(
            foreach=foreach, maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused
        )
        torch.optim.AdamW.__init__(self, params, **_with_float_betas(numbers), **flags)
        corrects, limit = bias_correction is None or bool(bias_correction), _limit(max_grad_norm)
        self._set_options(numbers, loss_scaling, **dtypes, bias_correction=corrects, max_grad_norm=limit)


def _with_float_betas(numbers: dict[str, Any]) -> dict[str, Any]:
    """Newer PyTorch insists on floats."""
    return numbers | {name: tuple(map(float, value)) for name, value in numbers.items() if name == "betas"}


def _limit(max_grad_norm: float | None) -> float:
    return math.inf if max_grad_norm is None else max_grad_norm


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop, optionally `centered` (equal in all groups), with momentum, or TensorFlow's (on the device only)."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
        *,
        capturable: bool | None = None,
    ) -> None:
        numbers = _given(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered)
        _require_numbers(numbers)
        dtypes = _moment_dtypes(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type)
        flags = _given(foreach=foreach, maximize=maximize, capturable=capturable, differentiable=differentiable)
        torch.optim.RMSprop.__init__(self, params, **numbers, **flags)
        self._set_options(numbers, loss_scaling, **dtypes, use_tf_variant=bool(use_tf_variant))


_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0}


class LAMB(Optimizer, torch.optim.Optimizer):
    """LAMB: Adam with decoupled weight decay and a step scaled, for each tensor, to the norm of the weights.

    `max_weight_norm=None` means 65500, no limit in practice.
    """

    max_weight_norm: float
    bias_correction: bool

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        numbers = _given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_weight_norm=max_weight_norm)
        _require_numbers(numbers)
        defaults: dict[str, Any] = {**_DEFAULTS, **numbers}
        for name, shown in (("lr", "learning rate"), ("eps", "epsilon value"), ("weight_decay", "weight_decay value")):
            if not defaults[name] >= 0.0:
                raise ValueError(f"Invalid {shown}: {defaults[name]}; it must not be negative.")
        for index, beta in enumerate(defaults["betas"]):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {index}: {beta}; it must be in [0, 1).")
        dtypes = _moment_dtypes(accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type)
        torch.optim.Optimizer.__init__(self, params, defaults)
        corrects, limit = bias_correction is None or bool(bias_correction), defaults["max_weight_norm"]
        self._set_options(numbers, loss_scaling, **dtypes, bias_correction=corrects, max_weight_norm=limit)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters on the CPU as the device would; return what `closure` returns.

        The limit on the weight norm is the attribute `max_weight_norm`, not the groups'.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            state.update(step=torch.zeros(()), **zeros)
        tensors = {"Accl1": state["exp_avg"], "Accl2": state["exp_avg_sq"], "Step": state["step"]}
        assert parameter.grad is not None
        entry = Entry(parameter, parameter.grad.clone(), tensors, half=False, fresh=False)
        numbers = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        hyper = Hyper(**numbers, max_weight_norm=self.max_weight_norm)
        rule = Lamb(WeightUpdate(Algorithm.LAMB, corrects_bias=self.bias_correction))
        rule.update([entry], rule.scalars(hyper, 1.0), Context(1.0, 1.0, Rounding()))
