"""What an item of an asynchronous loader looks like: its tensors in a row, and the way back to the item."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poptorch._args_parser import ICustomArgParser, parser_for


@dataclass(frozen=True)
class SingleTensor:
    """An item that is one tensor."""

    def flatten(self, item: Any) -> list[Tensor]:
        """Return the tensor in a list; raise `TypeError` for anything else."""
        return [_tensor(item, "The item")]

    def rebuild(self, tensors: list[Tensor]) -> Tensor:
        """Return the only tensor."""
        return tensors[0]


@dataclass(frozen=True)
class TensorSequence:
    """A flat tuple or list of tensors; both come out as lists."""

    length: int

    def flatten(self, item: Any) -> list[Tensor]:
        """Return the tensors; raise `TypeError` or `ValueError` for another structure."""
        if not isinstance(item, (tuple, list)) or len(item) != self.length:
            raise _changed(f"a sequence of {self.length} tensors", item)
        return [_tensor(value, f"Element {index} of the item") for index, value in enumerate(item)]

    def rebuild(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the tensors as a list."""
        return list(tensors)


@dataclass(frozen=True)
class TensorDict:
    """A dict of tensors with constant keys, in the order of the first item."""

    keys: tuple[Hashable, ...]

    def flatten(self, item: Any) -> list[Tensor]:
        """Return the tensors in key order; raise `TypeError` or `ValueError` for another structure."""
        if not isinstance(item, dict) or item.keys() != set(self.keys):
            raise _changed(f"a dict with the keys {list(self.keys)}", item)
        return [_tensor(item[key], f"Element {key!r} of the item") for key in self.keys]

    def rebuild(self, tensors: list[Tensor]) -> dict[Hashable, Tensor]:
        """Return the dict."""
        return dict(zip(self.keys, tensors, strict=True))


@dataclass(frozen=True, eq=False)
class CustomType:
    """An object of a type given to `registerCustomArgParser`; the first item is the pattern for others."""

    pattern: Any
    length: int

    def flatten(self, item: Any) -> list[Tensor]:
        """Return the tensors its parser yields; raise `TypeError` or `ValueError` for another structure."""
        parser = parser_for(item)
        if parser is None:
            raise _changed(f"a {type(self.pattern).__name__}", item)
        tensors = _tensors_of_custom(parser, item)
        if len(tensors) != self.length:
            raise _changed(f"a {type(self.pattern).__name__} with {self.length} tensors", item)
        return tensors

    def rebuild(self, tensors: list[Tensor]) -> Any:
        """Let the parser of the first item's type make an object with these tensors."""
        parser = parser_for(self.pattern)
        assert parser is not None, (
            f"The parser of {type(self.pattern).__name__} was unregistered while a loader still uses it."
        )
        return parser.reconstruct(self.pattern, iter(tensors))


ItemStructure = SingleTensor | TensorSequence | TensorDict | CustomType


def describe(item: Any) -> ItemStructure:
    """Return the structure of a first item; raise `TypeError` if a custom type holds more than tensors."""
    parser = parser_for(item)
    if parser is not None:
        return CustomType(item, len(_tensors_of_custom(parser, item)))
    if isinstance(item, dict):
        return TensorDict(tuple(item))
    if isinstance(item, (tuple, list)):
        return TensorSequence(len(item))
    return SingleTensor()


def _tensors_of_custom(parser: ICustomArgParser, item: Any) -> list[Tensor]:
    name = type(item).__name__
    return [_tensor(value, f"Tensor {i} of a {name}") for i, value in enumerate(parser.yieldTensors(item))]


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not value.is_quantized:
            return value
        raise TypeError(f"{where} is a torch tensor without a plain layout ({value.layout}): make it dense first.")
    raise TypeError(
        f"{where} is not a torch tensor but a {type(value).__name__}. Items loaded in another process are a "
        "tensor, a flat tuple, list or dict of tensors, or a type registered with registerCustomArgParser(); "
        "DataLoaderMode.Sync takes whatever torch takes."
    )


def _changed(expected: str, item: Any) -> Exception:
    got = f"a dict with the keys {list(item)}" if isinstance(item, dict) else f"a {type(item).__name__}"
    if isinstance(item, (tuple, list)):
        got += f" of {len(item)} elements"
    return ValueError(f"Every item must look like the first one, {expected}; got {got}.")
