"""Arguments of forward: the tensors inside them, how a call binds them, and which later calls are like it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ipu_model.capture.device_tensors import WITHOUT_DATA, KeptTensor
from ipu_model.errors import Error, require
from poptorch import _utils
from poptorch._impl import OptimizerWrapper
from poptorch._logging import logger


@dataclass(frozen=True)
class BoundArguments:
    """What a call passes to forward: values by parameter name, then `*args` and `**kwargs` extras."""

    positional: tuple[Any, ...]
    names: tuple[str, ...]
    keywords: Mapping[str, Any]

    @property
    def args(self) -> list[Any]:
        return [*self.positional, *self.keywords.values()]

    @property
    def tensors(self) -> list[Tensor]:
        return _utils.flattenTensorStructure((self.positional, dict(self.keywords)))

    def with_tensors(self, tensors: list[Tensor]) -> BoundArguments:
        positional, keywords = _utils.reconstructTensorStructure((self.positional, dict(self.keywords)), tensors)
        return BoundArguments(positional, self.names, keywords)

    def without_values(self) -> BoundArguments:
        return self.with_tensors([torch.empty_like(tensor, device="meta") for tensor in self.tensors])

    def warn_about_dicts(self) -> None:
        leaves = tree_leaves(self.args, is_leaf=lambda value: isinstance(value, dict))
        if any(isinstance(leaf, dict) for leaf in leaves):
            logger.warning(
                "Dicts as inputs only have partial support, they can be accessed using literal keys, but full Python "
                "functionality is not enabled. Consider changing dict inputs to tuple."
            )


class ArgsParser:
    """Binds calls to the parameters of a module's forward; classes derived from it may set the first three fields."""

    _keyword_only: Mapping[str, Any] = MappingProxyType({})
    _open_kwargs = False
    _shown = "tensors"

    def __init__(self, model: nn.Module) -> None:
        forward = model.model.forward if isinstance(model, OptimizerWrapper) else model.forward
        parameters = inspect.signature(forward).parameters.values()
        kinds = {parameter.kind for parameter in parameters}
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._shown = ", ".join(map(str, parameters))
        self._varnames = [p.name for p in positional]
        self._defaults = [p.default for p in positional]
        self._has_variadic_arguments = inspect.Parameter.VAR_POSITIONAL in kinds
        self._keyword_only = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        self._open_kwargs = inspect.Parameter.VAR_KEYWORD in kinds

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], fast_path: bool = False) -> BoundArguments:
        """Move keyword arguments to their positions and fill in defaults; there is no faster path than this one."""
        names = self._varnames
        require(
            self._has_variadic_arguments or len(args) <= len(names),
            f"Too many arguments provided: expected {names} but got {len(args)} positional arguments.",
        )
        remaining = dict(kwargs)
        for name in names[: len(args)]:
            require(name not in remaining, f"Parameter {name} was passed more than once.")
        left = list(zip(names, self._defaults))[len(args) :]
        values = [*args, *(self._take(name, default, remaining) for name, default in left)]
        keywords = {name: self._take(name, default, remaining) for name, default in self._keyword_only.items()}
        for name in remaining:
            require(self._open_kwargs, f"{name} is not a valid parameter. Valid ones: {names}.")
        keywords.update(remaining)
        extra = [f"args[{i}]" for i in range(len(values) - len(names))]
        return BoundArguments(tuple(values), (*names, *extra), keywords)

    def _take(self, name: str, default: Any, remaining: dict[str, Any]) -> Any:
        if name in remaining:
            return remaining.pop(name)
        if default is inspect.Parameter.empty:
            raise Error(f"Mandatory parameter {name} missing: forward takes ({self._shown}).")
        return default


def check_same(compiled: BoundArguments, given: BoundArguments) -> BoundArguments:
    """Return `given` with dict keys in the compiled order, if it fits the compiled model."""
    wanted, got = len(compiled.positional), len(given.positional)
    if wanted != got:
        raise _mismatch(f"Number of positional arguments mismatch: expected {wanted} arguments but got {got}.")
    positional = tuple(map(_same, compiled.names, compiled.positional, given.positional))
    _check_keys("keyword arguments", compiled.keywords, given.keywords)
    keywords = {name: _same(name, value, given.keywords[name]) for name, value in compiled.keywords.items()}
    return BoundArguments(positional, compiled.names, keywords)


def _same(name: str, expected: Any, got: Any) -> Any:
    if type(expected) is not type(got) and not (isinstance(expected, Tensor) and isinstance(got, Tensor)):
        raise _mismatch(f"Type mismatch for {name}: expected {type(expected)} but got {type(got)}.")
    wanted, given = _utils.parts_of(expected), _utils.parts_of(got)
    if (
        wanted is None
        or given is None
        or not (isinstance(expected, (tuple, dict)) or _utils.flattenTensorStructure([expected, got]))
    ):
        _same_leaf(name, expected, got)
        return got
    if isinstance(expected, list) or _utils.getCustomParser(expected) is not None:
        ordered = _utils.in_order_of(expected, got)
        leaves = _utils.flatten(expected)[0], _utils.flatten(ordered)[0]
        wanted, given = (_utils.Parts(dict(enumerate(of_one)), lambda _: ordered) for of_one in leaves)
    if not isinstance(expected, dict) and len(wanted.items) != len(given.items):
        raise _mismatch(f"Length mismatch for {name}: expected {len(wanted.items)} but got {len(given.items)}.")
    _check_keys(name, wanted.items, given.items)
    items = {key: _same(name + given.suffix.format(key), item, given.items[key]) for key, item in wanted.items.items()}
    return given.rebuild(items)


def _check_keys(name: str, expected: Mapping[Any, Any], got: Mapping[Any, Any]) -> None:
    parts = []
    for what, keys, others in (("Missing", expected, got), ("Unexpected", got, expected)):
        names = [str(key) for key in keys if key not in others]
        if names:
            parts.append(f"{what} arguments: {', '.join(names)}.")
    if parts:
        raise _mismatch(f"Keys mismatch for {name}. {' '.join(parts)}")


def _same_leaf(name: str, expected: Any, got: Any) -> None:
    if not isinstance(expected, Tensor):
        try:
            equal = expected is got or bool(expected == got)
        except (TypeError, ValueError, RuntimeError):
            equal = False
        # PopTorch would carry on with the value of the compilation without a word.
        if not equal:
            raise _mismatch(f"Value mismatch for {name}: expected {expected} but got {got}.")
    elif expected.dtype != got.dtype:
        raise _mismatch(f"Data type mismatch for {name}: expected {expected.dtype} but got {got.dtype}.")
    elif expected.shape != got.shape:
        raise _mismatch(f"Shape mismatch for {name}: expected {expected.shape} but got {got.shape}.")


def _mismatch(what: str) -> Error:
    return Error(
        f"{what} The arguments don't match the inputs used to compile the model. Call destroy() on the model first to "
        "compile it again for the new inputs, or give it the inputs it was compiled for."
    )


_FLOATING = (torch.float32, torch.float16, torch.float64, torch.bfloat16)
SUPPORTED_INPUT_TYPES = (*_FLOATING, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def check_on_host(tensors: list[Tensor]) -> None:
    for tensor in tensors:
        if isinstance(tensor, KeptTensor):
            raise Error(f"An input is {WITHOUT_DATA}")
        if tensor.device.type != "cpu":
            raise Error(f"Inputs must be on the CPU, but a tensor is on {tensor.device}. Call cpu().")


def check_inputs(tensors: list[Tensor]) -> None:
    for tensor in tensors:
        if tensor.dtype not in SUPPORTED_INPUT_TYPES:
            nearest = " Pass the real and imaginary parts separately." if tensor.is_complex() else ""
            raise Error(f"Unsupported input type {tensor.dtype}.{nearest}")
        if 0 in tensor.shape:
            raise Error(f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)}).")
