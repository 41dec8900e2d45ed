"""Arguments of forward: the tensors inside them, how a call binds them, and which later calls are like it."""

from __future__ import annotations

import abc
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poptorch._impl import createPoptorchError
from poptorch._logging import logger


class ICustomArgParser(abc.ABC):
    """Takes the tensors out of one custom type and puts others back."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterable[Tensor]:
        """Return every tensor inside `struct`, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """Return an object like `original_structure` holding the next tensors of `tensor_iterator`."""


# PopTorch's registration is a module-level function, so the registry belongs to the process.
_parsers: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(arg_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Use `arg_parser` for arguments, outputs and loader items of `arg_type`; `None` forgets the type.

    Raises `poptorch.Error` if `arg_parser` is not an instance of `ICustomArgParser`.
    """
    if arg_parser is None:
        _parsers.pop(arg_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise createPoptorchError(
            f"arg_parser must inherit from ICustomArgParser; got {arg_parser!r} for {arg_type!r}. "
            "Pass an instance of a class derived from it, or None to unregister the type."
        )
    _parsers[arg_type] = arg_parser


def parser_for(value: object) -> ICustomArgParser | None:
    """Return the parser of `value`'s exact type, else of the base class registered first, else `None`."""
    if not _parsers:
        return None
    exact = _parsers.get(type(value))
    if exact is not None:
        return exact
    return next((parser for arg_type, parser in _parsers.items() if isinstance(value, arg_type)), None)


def registered_parsers() -> dict[type, ICustomArgParser]:
    """Return a copy of the registrations in order, for a loader's process to repeat."""
    return dict(_parsers)


def register_all(parsers: Mapping[type, ICustomArgParser]) -> None:
    """Repeat registrations made in another process."""
    for arg_type, parser in parsers.items():
        registerCustomArgParser(arg_type, parser)


Rebuild = Callable[[list[Any]], Any]


def flatten(value: Any) -> tuple[list[Any], Rebuild]:
    """Return the leaves of `value` and a function that makes an equal structure from other leaves.

    Containers are tuples, named tuples, lists, dicts (with subclasses), instances of data classes and registered
    custom types; everything else is a leaf.
    """
    leaves: list[Any] = []
    rebuild = _visit(value, leaves)
    return leaves, lambda new: rebuild(iter(new))


def tensor_leaves(value: Any) -> list[Tensor]:
    """Return the tensors in `value`, in order."""
    return [leaf for leaf in flatten(value)[0] if isinstance(leaf, Tensor)]


def replace_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """Return a structure like `value` with its tensors replaced, in order, by `tensors`."""
    leaves, rebuild = flatten(value)
    new = iter(tensors)
    return rebuild([next(new) if isinstance(leaf, Tensor) else leaf for leaf in leaves])


def _visit(value: Any, leaves: list[Any]) -> Callable[[Iterator[Any]], Any]:
    parser = parser_for(value)
    if parser is not None:
        tensors = list(parser.yieldTensors(value))
        leaves.extend(tensors)
        return lambda new: parser.reconstruct(value, iter([next(new) for _ in tensors]))
    if isinstance(value, dict):
        return _visit_dict(value, leaves)
    if isinstance(value, (tuple, list)):
        parts = [_visit(item, leaves) for item in value]
        return lambda new: _same_sequence(value, [part(new) for part in parts])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _visit_data_class(value, leaves)
    leaves.append(value)
    return next


def _visit_data_class(value: Any, leaves: list[Any]) -> Callable[[Iterator[Any]], Any]:
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    parts = {name: _visit(getattr(value, name), leaves) for name in names}

    def rebuild(new: Iterator[Any]) -> Any:
        made = copy.copy(value)
        for name, part in parts.items():
            object.__setattr__(made, name, part(new))  # also of a frozen one
        return made

    return rebuild


def _visit_dict(value: dict[Any, Any], leaves: list[Any]) -> Callable[[Iterator[Any]], Any]:
    parts = {key: _visit(item, leaves) for key, item in value.items()}

    def rebuild(new: Iterator[Any]) -> Any:
        items = {key: part(new) for key, part in parts.items()}
        if type(value) is dict:
            return items
        try:
            return type(value)(items)
        except TypeError:
            # A subclass with a constructor of its own (defaultdict, say): fill a copy of the original.
            filled = value.copy()
            filled.update(items)
            return filled

    return rebuild


def _same_sequence(original: Any, items: list[Any]) -> Any:
    if hasattr(original, "_fields"):
        return type(original)(*items)
    return type(original)(items)


_HINT = (
    "Call destroy() on the model first to compile it again for the new inputs, or give it the inputs it was "
    "compiled for."
)


@dataclass(frozen=True)
class BoundArguments:
    """What a call passes to forward: values by parameter name, then `*args` and `**kwargs` extras."""

    positional: tuple[Any, ...]
    names: tuple[str, ...]
    keywords: Mapping[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of all arguments, in a fixed order."""
        return tensor_leaves((self.positional, dict(self.keywords)))

    def with_tensors(self, tensors: list[Tensor]) -> BoundArguments:
        """Return the same call with other tensors."""
        positional, keywords = replace_tensors((self.positional, dict(self.keywords)), tensors)
        return BoundArguments(positional, self.names, keywords)

    def without_values(self) -> BoundArguments:
        """Return the same call with shapes and types of tensors only, not their data."""
        return self.with_tensors([torch.empty_like(tensor, device="meta") for tensor in self.tensors])

    def warn_about_dicts(self) -> None:
        """Log that dicts as arguments are supported in part, if there are any."""
        if any(_holds_dict(value) for value in (*self.positional, *self.keywords.values())):
            logger.warning(
                "Dictionaries as inputs are partially supported: their keys are fixed when the model is compiled."
            )

    def call(self, function: Callable[..., Any]) -> Any:
        """Call `function` with these arguments."""
        return function(*self.positional, **self.keywords)


def _holds_dict(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_holds_dict(item) for item in value)
    return isinstance(value, dict)


class Signature:
    """The parameters of a module's forward."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._parameters = list(inspect.signature(forward).parameters.values())
        kinds = {parameter.kind for parameter in self._parameters}
        self._open_args = inspect.Parameter.VAR_POSITIONAL in kinds
        self._open_kwargs = inspect.Parameter.VAR_KEYWORD in kinds
        self._positional = [
            p for p in self._parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
        self._keyword_only = [p for p in self._parameters if p.kind is p.KEYWORD_ONLY]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundArguments:
        """Move keyword arguments to their positions and fill in defaults.

        Raises:
            Error: a mandatory parameter is missing.
            AssertionError: too many arguments, unknown or doubly given names.
        """
        names = [p.name for p in self._positional]
        assert self._open_args or len(args) <= len(names), (
            f"Too many arguments provided: expected {names} but got {len(args)} positional arguments."
        )
        remaining = dict(kwargs)
        for name in names[: len(args)]:
            assert name not in remaining, f"Parameter {name} was passed more than once."
        values = list(args)
        for parameter in self._positional[len(args) :]:
            values.append(self._take(parameter, remaining))
        keywords = {p.name: self._take(p, remaining) for p in self._keyword_only}
        for name in remaining:
            assert self._open_kwargs, f"{name} is not a valid parameter. Valid ones: {names}."
        keywords.update(sorted(remaining.items()))
        extra = [f"args[{i}]" for i in range(len(values) - len(names))]
        return BoundArguments(tuple(values), tuple(names + extra), keywords)

    def _take(self, parameter: inspect.Parameter, remaining: dict[str, Any]) -> Any:
        if parameter.name in remaining:
            return remaining.pop(parameter.name)
        if parameter.default is inspect.Parameter.empty:
            takes = ", ".join(str(parameter) for parameter in self._parameters)
            raise createPoptorchError(f"Mandatory parameter {parameter.name} missing: forward takes ({takes}).")
        return parameter.default


def check_same(compiled: BoundArguments, given: BoundArguments) -> BoundArguments:
    """Return `given` with dict keys in the compiled order, if it fits the compiled model.

    Raises:
        Error: says which argument differs and how.
    """
    if len(compiled.positional) != len(given.positional):
        raise _mismatch(
            f"Number of positional arguments mismatch: expected {len(compiled.positional)} arguments but got "
            f"{len(given.positional)}."
        )
    positional = tuple(
        _same(name, a, b) for name, a, b in zip(compiled.names, compiled.positional, given.positional)
    )  # fmt: skip
    keywords = _same("keyword arguments", dict(compiled.keywords), dict(given.keywords))
    return BoundArguments(positional, compiled.names, keywords)


def _same(name: str, expected: Any, got: Any) -> Any:
    if type(expected) is not type(got) and not (isinstance(expected, Tensor) and isinstance(got, Tensor)):
        raise _mismatch(f"Type mismatch for {name}: expected {type(expected)} but got {type(got)}.")
    if isinstance(expected, Tensor):
        return _same_tensor(name, expected, got)
    if isinstance(expected, dict):
        return _same_dict(name, expected, got)
    if isinstance(expected, list):
        _same_tensors_of(name, expected, got)
        return got
    if isinstance(expected, tuple):
        if len(expected) != len(got):
            raise _mismatch(f"Length mismatch for {name}: expected {len(expected)} but got {len(got)}.")
        items = [_same(f"{name}[{i}]", a, b) for i, (a, b) in enumerate(zip(expected, got))]
        return type(got)(*items) if hasattr(got, "_fields") else type(got)(items)
    _same_tensors_of(name, expected, got)
    if not tensor_leaves(expected) and not _equal(expected, got):
        raise _mismatch(f"Value mismatch for {name}: expected {expected} but got {got}.")
    return got


def _equal(expected: Any, got: Any) -> bool:
    """Compare two values of any type; what cannot be compared as a whole is not equal."""
    try:
        return expected is got or bool(expected == got)
    except (TypeError, ValueError, RuntimeError):
        return False


def _same_tensor(name: str, expected: Tensor, got: Tensor) -> Tensor:
    if expected.dtype != got.dtype:
        raise _mismatch(f"Data type mismatch for {name}: expected {expected.dtype} but got {got.dtype}.")
    if expected.shape != got.shape:
        raise _mismatch(f"Shape mismatch for {name}: expected {expected.shape} but got {got.shape}.")
    return got


def _same_dict(name: str, expected: dict[Any, Any], got: dict[Any, Any]) -> dict[Any, Any]:
    missing = [str(key) for key in expected if key not in got]
    unexpected = [str(key) for key in got if key not in expected]
    if missing or unexpected:
        parts = [f"Missing arguments: {', '.join(missing)}."] if missing else []
        parts += [f"Unexpected arguments: {', '.join(unexpected)}."] if unexpected else []
        raise _mismatch(f"Keys mismatch for {name}. {' '.join(parts)}")
    items = {key: _same(f"{name}[{key}]", expected[key], got[key]) for key in expected}
    if type(got) is dict:
        return items
    ordered = got.copy()
    ordered.clear()
    ordered.update(items)
    return ordered


def _same_tensors_of(name: str, expected: Any, got: Any) -> None:
    """Compare the tensors inside two lists or custom values in flattened order."""
    wanted, given = (flatten(value)[0] for value in (expected, got))
    if len(wanted) != len(given):
        raise _mismatch(f"Length mismatch for {name}: expected {len(wanted)} but got {len(given)}.")
    for index, (a, b) in enumerate(zip(wanted, given)):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            _same_tensor(f"{name}[{index}]", a, b)
        elif isinstance(a, Tensor) or isinstance(b, Tensor):
            raise _mismatch(f"Type mismatch for {name}[{index}]: expected {type(a)} but got {type(b)}.")


def _mismatch(what: str) -> Exception:
    return createPoptorchError(f"{what} The arguments don't match the inputs used to compile the model. {_HINT}")


SUPPORTED_INPUT_TYPES = frozenset({
    torch.float32, torch.float16, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool,
})  # fmt: skip


def check_layouts(tensors: list[Tensor]) -> None:
    """Refuse tensors that are no plain arrays.

    Raises:
        Error: names the layout.
    """
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise createPoptorchError(f"Unsupported input type: a tensor of layout {tensor.layout}. Call to_dense().")


def check_on_host(tensors: list[Tensor]) -> None:
    """Refuse tensors without data in the host's memory.

    Raises:
        Error: names the device.
    """
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise createPoptorchError(f"Inputs must be on the CPU, but a tensor is on {tensor.device}. Call cpu().")


def check_inputs(tensors: list[Tensor]) -> None:
    """Refuse tensors the device cannot take.

    Raises:
        Error: an unsupported element type or a tensor without elements.
    """
    for tensor in tensors:
        if tensor.dtype not in SUPPORTED_INPUT_TYPES:
            raise createPoptorchError(
                f"Unsupported input type {tensor.dtype}. Send real and imaginary parts apart."
                if tensor.is_complex()
                else f"Unsupported input type {tensor.dtype}."
            )
        if 0 in tensor.shape:
            raise createPoptorchError(f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)}).")
