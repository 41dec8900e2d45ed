"""Reading a Python optimiser: its numbers for the engine, and which parameter belongs to which group."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import torch

import poptorch.optim as poptorch_optim
from ipu_model.capture.graph import dtype_of
from ipu_model.errors import UnknownParameter, require
from ipu_model.optimiser import FAMILIES, Hyper, OptimiserSpec
from ipu_model.step import FLOAT16
from poptorch._logging import logger, once_logger
from poptorch.optim import ACCUMULATOR_DTYPES, ACCUMULATOR_RULE, _require_numbers
from poptorch.options import Options

# A native PyTorch optimiser streams lr always, and these where they differ from the family's default.
_NATIVE_DEFAULTS = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "eps": 1e-8}
_DTYPES = {
    "accum_dtype": "accum_type",
    "velocity_dtype": "velocity_accum_type",
    "first_dtype": "first_order_momentum_accum_type",
    "second_dtype": "second_order_momentum_accum_type",
}
# Keys that PyTorch's own classes put into groups, whether or not the device uses them.
_TORCH_KEYS = (
    "params param_names foreach maximize capturable differentiable fused amsgrad centered decoupled_weight_decay"
)
_OPTIONS = [
    "defaults", "state", "param_groups", "variable_attrs", "loss_scaling", "max_grad_norm", "use_combined_accum",
    "use_tf_variant", "bias_correction", "max_weight_norm", *_DTYPES.values(),
]  # fmt: skip
_OBJECT, _DEFAULTS, _GROUP = "optimizer attribute", "default group variable", "group {} attribute"


class _OptimizerType(IntEnum):
    """The families of `ipu_model.optimiser`, by PopTorch's numbers."""

    SGD1 = 0
    SGD2 = 1
    ADAM = 2
    ADAMW = 3
    ADAMW_NO_BIAS = 4
    RMSPROP = 5
    RMSPROP_CENTERED = 6
    LAMB = 7
    LAMB_NO_BIAS = 8


class OptimizerAttrTracker:
    """The attribute names that one executor has seen; once checks are enabled, each new one is logged."""

    def __init__(self, opts: Options) -> None:
        self._level = logging.DEBUG if opts._relax_optimizer_checks else logging.WARNING
        self._known: dict[str, set[str]] = {}
        self.log_once = once_logger()
        self._checks = False
        self._type = _OptimizerType.SGD2

    def setType(self, optimizer_type: _OptimizerType) -> None:
        self._type = optimizer_type

    def enableChecks(self) -> None:
        self._checks = True

    def checkOptimizerAttributes(self, provided: Iterable[str]) -> None:
        self._check(_OBJECT, provided)

    def checkDefaultAttributes(self, provided: Iterable[str]) -> None:
        self._check(_DEFAULTS, provided)

    def checkGroupAttributes(self, provided: Iterable[str], group: int) -> None:
        self._check(_GROUP.format(group), provided)

    def _check(self, place: str, provided: Iterable[str]) -> None:
        # Later groups are compared with the first one.
        known = self._known.setdefault(place, set(self._known.get(_GROUP.format(0), ())))
        read_anyway = _OPTIONS if place == _OBJECT else [*_TORCH_KEYS.split(), *FAMILIES[self._type.name]]
        unexpected = sorted(set(provided) - known - set(read_anyway))
        known.update(provided)
        if unexpected and self._checks:
            logger.log(self._level, "Ignoring unexpected %s in %s optimizer: %s", place, self._type.name, unexpected)


def read_spec(optimizer: torch.optim.Optimizer, tracker: OptimizerAttrTracker | None = None) -> OptimiserSpec:
    """Return what the device needs to know of `optimizer`; `tracker`, the executor's own, lets warnings come once."""
    family = family_of(optimizer)
    if tracker is None:
        tracker = OptimizerAttrTracker(Options())
    tracker.setType(_OptimizerType[family])
    # Schedulers replace methods of the object; these are not attributes of the optimiser.
    own = [name for name, value in vars(optimizer).items() if not name.startswith("_") and not callable(value)]
    tracker.checkOptimizerAttributes(own)
    tracker.checkDefaultAttributes(optimizer.defaults)
    for index, group in enumerate(optimizer.param_groups):
        tracker.checkGroupAttributes(group, index)
    tracker.enableChecks()
    _warn_of_ignored_code(optimizer, tracker)
    loss_scaling = getattr(optimizer, "loss_scaling", 1.0)
    max_grad_norm = getattr(optimizer, "max_grad_norm", math.inf)
    _require_numbers({"loss_scaling": loss_scaling, "max_grad_norm": max_grad_norm})
    dtypes = {field: getattr(optimizer, public, torch.float32) for field, public in _DTYPES.items()}
    for field, dtype in dtypes.items():
        if dtype not in ACCUMULATOR_DTYPES:
            raise ValueError(f"{ACCUMULATOR_RULE}, but {_DTYPES[field]} is {dtype}.")
    variables = optimizer.variable_attrs if isinstance(optimizer, poptorch_optim.Optimizer) else None
    return OptimiserSpec(
        family=family,
        default=_hyper(optimizer, family, optimizer.defaults),
        groups=tuple(_hyper(optimizer, family, group) for group in optimizer.param_groups),
        loss_scaling=float(loss_scaling),
        loss_scaling_variable=variables is not None and not variables.isConstant("loss_scaling"),
        max_grad_norm=float(max_grad_norm),
        use_tf_variant=bool(getattr(optimizer, "use_tf_variant", False)),
        **{field: dtype_of(dtype) for field, dtype in dtypes.items()},
    )


def group_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, int | None]:
    groups = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    named = {id(parameter) for parameter in parameters.values()}
    for i, group in enumerate(optimizer.param_groups):
        for position, tensor in enumerate(group["params"]):
            if id(tensor) not in named:
                raise UnknownParameter(
                    f"Tensor {position} of parameter group {i} (shape {tuple(tensor.shape)}) is no "
                    "parameter of the model. Create the optimizer from the parameters of the wrapped model."
                )
    return {name: groups.get(id(parameter)) for name, parameter in parameters.items()}


def family_of(optimizer: torch.optim.Optimizer) -> str:
    if isinstance(optimizer, torch.optim.SGD):
        return "SGD1" if getattr(optimizer, "use_combined_accum", False) else "SGD2"
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        if any(values.get("amsgrad", False) for values in (optimizer.defaults, *optimizer.param_groups)):
            raise ValueError("Only non-amsgrad Adam/AdamW optimizers are supported. Use amsgrad=False.")
        # Newer PyTorch has one class for both kinds of weight decay, and a flag in every group.
        flags = {bool(values.get("decoupled_weight_decay", False)) for values in optimizer.param_groups}
        is_decoupled = isinstance(optimizer, torch.optim.AdamW)
        if len(flags) > 1 and not is_decoupled:
            raise ValueError("All parameter groups must have the same decoupled_weight_decay. Use torch.optim.AdamW.")
        if not is_decoupled and flags != {True}:
            return "ADAM"
        return "ADAMW" if getattr(optimizer, "bias_correction", True) else "ADAMW_NO_BIAS"
    if isinstance(optimizer, torch.optim.RMSprop):
        first, *others = (bool(group["centered"]) for group in optimizer.param_groups)
        for index, flag in enumerate(others, start=1):
            rule = "All parameter groups must have the same value for the 'centered' attribute"
            require(flag == first, f"{rule} (Group 0: {first} / Group {index}: {flag}).")
        return "RMSPROP_CENTERED" if first else "RMSPROP"
    if isinstance(optimizer, poptorch_optim.LAMB):
        return "LAMB" if optimizer.bias_correction else "LAMB_NO_BIAS"
    raise AssertionError(
        f"Unsupported optimizer type {type(optimizer).__name__}: the device knows SGD, Adam, AdamW and "
        "RMSprop of torch.optim and poptorch.optim, and poptorch.optim.LAMB."
    )


def _hyper(optimizer: torch.optim.Optimizer, family: str, values: Mapping[str, Any]) -> Hyper:
    numbers: dict[str, Any] = {}
    for name in FAMILIES[family]:
        value = values[name] if values.get(name) is not None else optimizer.defaults[name]
        _require_numbers({name: value})
        if name == "betas":
            numbers[name] = (float(value[0]), float(value[1]))
        else:
            numbers[name] = bool(value) if name == "nesterov" else float(value)
    if isinstance(optimizer, poptorch_optim.Optimizer):
        streamed = [name for name in numbers if not optimizer.variable_attrs.isConstant(name)]
    else:
        usual = _NATIVE_DEFAULTS | ({"weight_decay": 0.01} if family == "ADAMW" else {})
        streamed = ["lr", *(name for name in numbers if name in usual and numbers[name] != usual[name])]
    return Hyper(**numbers, variable=frozenset(streamed))


def _warn_of_ignored_code(optimizer: torch.optim.Optimizer, tracker: OptimizerAttrTracker) -> None:
    kind = type(optimizer)
    known = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
    concrete = {torch.optim.Optimizer, poptorch_optim.Optimizer}.intersection(kind.__bases__)
    if kind not in known and not concrete:
        base = next(cls for cls in kind.__mro__ if cls in known or poptorch_optim.Optimizer in cls.__bases__)
        tracker.log_once(
            logging.WARNING,
            f"{kind.__name__} is a subclass of {base.__module__}.{base.__name__}. Poptorch does not run "
            f"Python optimizer code directly: {base.__name__}'s built-in update is used, and methods that "
            f"{kind.__name__} overrides have no effect.",
        )
    if any(group.get("maximize", False) for group in optimizer.param_groups):
        tracker.log_once(
            logging.WARNING, "maximize=True is ignored: the device always minimises. Negate the loss instead."
        )


def convertOptimizerToDict(
    optimizer: torch.optim.Optimizer, attr_tracker: OptimizerAttrTracker, options: Options, is_compiled: bool
) -> dict[str, Any]:
    """Return the numbers of `optimizer` by PopTorch's names, each with whether it is constant; raise as `read_spec`."""
    spec = read_spec(optimizer, attr_tracker)
    return {
        "optimizer_type": _OptimizerType[spec.family],
        "useTfVariant": spec.use_tf_variant,
        "maxGradNorm": spec.max_grad_norm,
        **{_toCamelCase(public): getattr(spec, field) == FLOAT16 for field, public in _DTYPES.items()},
        "lossScaling": (spec.loss_scaling, not spec.loss_scaling_variable),
        "defaults": _pairs(spec.default, spec.attributes),
        "groups": [_pairs(group, spec.attributes) for group in spec.groups],
    }


def _pairs(numbers: Hyper, names: tuple[str, ...]) -> dict[str, tuple[float, bool]]:
    pairs: dict[str, tuple[float, bool]] = {}
    for name in names:
        constant = name not in numbers.variable
        if name == "betas":
            pairs |= {f"beta{i}": (beta, constant) for i, beta in enumerate(numbers.betas, start=1)}
        else:
            pairs["learningRate" if name == "lr" else _toCamelCase(name)] = (getattr(numbers, name), constant)
    return pairs


def _toCamelCase(string: str) -> str:
    first, *others = string.split("_")
    return first + "".join(map(str.capitalize, others))
