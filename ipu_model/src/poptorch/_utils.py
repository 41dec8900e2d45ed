"""Handle tensors inside nested values; other small functions that public programs import from here."""

from __future__ import annotations

import abc
import copy
import ctypes
import dataclasses
import functools
import importlib.util
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ipu_model.capture import tracing
from poptorch._impl import Function, createPoptorchError
from poptorch._logging import logger

ATTR_PREFIX = "attr:"


def deprecated(domain: str, since_version: str, reason: str) -> Callable[[Function], Function]:
    """Decorate a function of `domain`, so that each call warns that it is deprecated."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def warning(*args: Any, **kwargs: Any) -> Any:
            text = "%s.%s is deprecated since version %s and will be removed in future releases. Reason: %s."
            logger.warning(text, domain, function.__name__, since_version, reason)
            return function(*args, **kwargs)

        return cast(Function, warning)

    return decorate


def assert_signatures_match(poptorch_method: Callable[..., Any], reference_method: Callable[..., Any]) -> None:
    """Raise `TypeError` unless the first function takes every parameter of the second, in the same order."""
    methods = (poptorch_method, reference_method)
    taken, wanted = (list(inspect.signature(method).parameters) for method in methods)
    missing = [name for name in wanted if name not in taken]
    if missing:
        raise TypeError(f"{poptorch_method.__qualname__} lacks arguments of its reference: {', '.join(missing)}.")
    common = [name for name in taken if name in wanted]
    if common != wanted:
        raise TypeError(
            f"{poptorch_method.__qualname__} has its arguments in another order than its reference: "
            f"{', '.join(common)} instead of {', '.join(wanted)}."
        )


class ICustomArgParser(abc.ABC):
    """Extracts the tensors from a custom type and puts other tensors back."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterable[Tensor]:
        """Return every tensor inside `struct`, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """Return an object like `original_structure` holding the next tensors of `tensor_iterator`."""


# PopTorch's registration is a module-level function, so the registry belongs to the process.
custom_arg_parsers: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Use `arg_parser` for arguments, outputs and loader items of `arg_data_type`; `None` forgets the type."""
    if arg_parser is None:
        custom_arg_parsers.pop(arg_data_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise createPoptorchError(
            f"arg_parser must inherit from ICustomArgParser; got {arg_parser!r} for {arg_data_type!r}. "
            "Pass an instance of a class derived from it, or None to unregister the type."
        )
    custom_arg_parsers[arg_data_type] = arg_parser


class _Graphs(ICustomArgParser):
    """Extracts the tensors, by name, from the stores of a `Data` or `HeteroData` of PyTorch Geometric."""

    def yieldTensors(self, struct: Any) -> Iterable[Tensor]:
        return [tensor for store in struct.stores for tensor in flattenTensorStructure(_by_name(store))]

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        made = copy.copy(original_structure)
        for store in made.stores:
            store.update(reconstructTensorStructure(_by_name(store), tensor_iterator))
        return made


def _by_name(store: Any) -> dict[str, Any]:
    return {name: store[name] for name in sorted(store.keys())}


def registerGeometricCustomArgParsers() -> None:
    """Let models and loaders take PyTorch Geometric's graphs; without that package, do nothing."""
    if importlib.util.find_spec("torch_geometric") is None:
        return
    from torch_geometric.data import Data, HeteroData

    for kind in (Data, HeteroData):
        registerCustomArgParser(kind, _Graphs())


def getCustomParser(custom_type_instance: object) -> ICustomArgParser | None:
    """Return the parser of a value's exact type, else of the base class registered first, else `None`."""
    exact = custom_arg_parsers.get(type(custom_type_instance))
    inherited = (parser for kind, parser in custom_arg_parsers.items() if isinstance(custom_type_instance, kind))
    return next(inherited, None) if exact is None else exact


def flatten(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the leaves of `value` and a function that makes an equal structure from other leaves.

    Containers are tuples, named tuples, lists, dicts (with subclasses), instances of data classes and registered
    custom types; everything else is a leaf.
    """
    leaves: list[Any] = []
    try:
        rebuild = _visit(value, leaves)
    except RecursionError:
        raise createPoptorchError(
            "A list, tuple or dict of tensors contains itself, or is nested too deeply."
        ) from None
    return leaves, lambda new: rebuild(iter(new))


def flattenTensorStructure(tensors: Any, canonical_structure: Any = None) -> list[Tensor]:
    """Return the tensors in a nested value, in order; the keys of dicts in the order of `canonical_structure`."""
    value = tensors if canonical_structure is None else in_order_of(canonical_structure, tensors)
    return [leaf for leaf in flatten(value)[0] if isinstance(leaf, Tensor)]


def reconstructTensorStructure(
    structure: Any, values: Iterable[Any], filter_fn: Callable[[Tensor], bool] = lambda t: True
) -> Any:
    """Return a structure like `structure`: `values` replace, in order, the tensors that `filter_fn` accepts."""
    leaves, rebuild = flatten(structure)
    new = iter(values)
    return rebuild([next(new) if isinstance(leaf, Tensor) and filter_fn(leaf) else leaf for leaf in leaves])


def in_order_of(pattern: Any, value: Any) -> Any:
    """Return `value` with the keys of its dicts in the order of those in `pattern`, where both have the same form."""
    wanted, given = parts_of(pattern), parts_of(value)
    if type(pattern) is not type(value) or wanted is None or given is None or wanted.items.keys() != given.items.keys():
        return value
    return given.rebuild({key: in_order_of(item, given.items[key]) for key, item in wanted.items.items()})


class Parts(NamedTuple):
    """What a container holds, by index, key or field; what makes one like it; and how a part is named after it."""

    items: dict[Any, Any]
    rebuild: Callable[[dict[Any, Any]], Any]
    suffix: str = "[{}]"


def parts_of(value: Any) -> Parts | None:
    """Take a container apart, by one level; `None` for a leaf."""
    parser = getCustomParser(value)
    if parser is not None:
        tensors = dict(enumerate(parser.yieldTensors(value)))
        return Parts(tensors, lambda new: parser.reconstruct(value, iter(new.values())))
    if isinstance(value, dict):
        return Parts(value, lambda new: _refilled(value, new))
    if isinstance(value, (tuple, list)):
        return Parts(dict(enumerate(value)), lambda new: same_sequence(value, list(new.values())))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return Parts(_data_fields(value), lambda new: _with_fields(value, new), ".{}")
    return None


def _visit(value: Any, leaves: list[Any]) -> Callable[[Iterator[Any]], Any]:
    parts = parts_of(value)
    if parts is None:
        leaves.append(value)
        return next
    visited = {key: _visit(item, leaves) for key, item in parts.items.items()}
    return lambda new: parts.rebuild({key: rebuild(new) for key, rebuild in visited.items()})


def _data_fields(value: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}


def _with_fields(original: Any, fields: dict[str, Any]) -> Any:
    made = copy.copy(original)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def _refilled(original: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    if type(original) is dict:
        return items
    fields = _data_fields(original)
    try:
        # A data class would take a dict for the value of its first field.
        return type(original)(**{**fields, **items}) if fields else type(original)(items)
    except TypeError:
        # A subclass with a constructor of its own (defaultdict, say): fill a copy of the original.
        filled = original.copy()
        filled.clear()
        for key, item in items.items():  # not update(), which the outputs of Hugging Face's models forbid
            filled[key] = item
        return filled


def same_sequence(original: Any, items: list[Any]) -> Any:
    return type(original)(*items) if hasattr(original, "_fields") else type(original)(items)


def combine_batch_tensors_gen(tensors: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the tensors of several batches joined along dimension 0, position by position.

    `tensors` has one entry for each batch: a tensor, or its tensors in order. Those without dimensions are stacked.
    """
    whole = all(isinstance(entry, Tensor) for entry in tensors)
    for parts in [tensors] if whole else zip(*tensors, strict=True):
        for part in parts:
            if not isinstance(part, Tensor):
                raise TypeError(
                    "An item joins several batches of the batch_sampler, so each part must be a torch tensor; got a "
                    f"{type(part).__name__}, which cannot be concatenated. Return tensors from collate_fn."
                )
        yield torch.cat(list(parts)) if parts[0].dim() else torch.stack(list(parts))


def combined_batch_generator(
    dataloader_iterator: Iterable[Any], num_batches_to_combine: int, drop_last: bool = True
) -> Iterator[Any]:
    """Join so many consecutive batches, tensor by tensor, along dimension 0; the last ones unless `drop_last`."""
    batches = iter(dataloader_iterator)
    while group := list(itertools.islice(batches, num_batches_to_combine)):
        if len(group) == num_batches_to_combine or not drop_last:
            _, rebuild = flatten(group[0])
            alike = [flatten(in_order_of(group[0], batch))[0] for batch in group]
            yield rebuild(list(combine_batch_tensors_gen(alike)))


def isOnIpu(x: Tensor) -> bool:
    """Return whether a tensor is one of the device, as those of a program that is being traced are."""
    return x.device.type == "ipu"


def getIpuTensorId(x: Tensor) -> int:
    """Return a number that identifies this tensor in the program that is being traced."""
    trace = tracing.current()
    node = trace.node_of(x) if trace is not None else None
    if trace is None or node is None:
        raise createPoptorchError("getIpuTensorId: the tensor is not on the IPU. Call it in a wrapped model's forward.")
    return next(number for number, other in enumerate(trace.nodes.nodes) if other is node)


def accessAttributes(attribute_id_str: str) -> Any:
    """Return the attributes of a custom op for `attr:` and their `id` in hex; the caller keeps the object alive."""
    logger.debug("Accessing attributes with: %s", attribute_id_str)
    if not isinstance(attribute_id_str, str):
        raise ValueError(f"Wrong type for attribute_id_str: {type(attribute_id_str)}, expected str.")
    if not attribute_id_str.startswith(ATTR_PREFIX):
        raise ValueError(f"Invalid attribute_id_str {attribute_id_str!r}: it must begin with {ATTR_PREFIX!r}.")
    return ctypes.cast(int(attribute_id_str.removeprefix(ATTR_PREFIX), 16), ctypes.py_object).value
