"""Custom argument types: how the library finds the tensors inside a class of the program's own."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from poptorch._errors import createPoptorchError


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
