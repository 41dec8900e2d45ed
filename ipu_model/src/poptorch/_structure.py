"""Nested arguments and results: take the tensors out of containers, put others back in the same places."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from poptorch._args import parser_for

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
