"""Plain values as JSON: a closed set of types, so that reading a file makes nothing but these.

Numbers, text, booleans and None stand for themselves; anything else is an object of one key, the name of its type.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ipu_model.graph import Output, Printed, TensorSpec, Variable
from ipu_model.step import Phase, Placement

_RECORDS: dict[str, type] = {kind.__name__: kind for kind in (TensorSpec, Placement, Printed, Variable, Output)}
_TORCH_KINDS: dict[str, type] = {
    "dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format,
}  # fmt: skip


class NotStorable(Exception):
    """A value that a file cannot hold; the text names it."""


class Invalid(Exception):
    """A file whose contents are not what its format says; the text says what is wrong."""


class OtherVersion(Invalid):
    """A file that another version has written."""


@contextlib.contextmanager
def damage_found(what: str) -> Iterator[None]:
    """Make `Invalid` of any error of the body, which takes apart what somebody else may have written."""
    try:
        yield
    except Invalid:
        raise
    except Exception as error:
        raise Invalid(f"{what} ({type(error).__name__}: {str(error).partition(chr(10))[0]:.200})") from error


def encode(value: Any) -> Any:
    """Return `value` as JSON knows it; of a tensor only shape and element type, of a node its name.

    Raises:
        NotStorable: a type outside the closed set.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, Tensor):
        return {"tensor": [list(value.shape), encode(value.dtype)]}
    if type(value) in (tuple, torch.Size):
        return {"tuple": [encode(item) for item in value]}
    if type(value) in (list, torch.fx.immutable_collections.immutable_list):
        return {"list": [encode(item) for item in value]}
    if type(value) in (dict, torch.fx.immutable_collections.immutable_dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if type(value) in (set, frozenset):
        return {"frozenset": sorted(encode(item) for item in value)}
    if isinstance(value, Phase):
        return {"phase": value.value}
    return _encode_named(value)


def _encode_named(value: Any) -> Any:
    """Encode records of the graph and torch's own constants, which go by their names."""
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for name, kind in _TORCH_KINDS.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if type(value) in _RECORDS.values():
        fields = [encode(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {type(value).__name__: fields}
    raise NotStorable(f"a value of type {type(value).__module__}.{type(value).__qualname__}")


def decode(data: Any, nodes: Mapping[str, torch.fx.Node] | None = None) -> Any:
    """Return the value that `encode` was given; tensors come back without data, on the device "meta".

    Raises:
        Invalid: not a result of `encode`.
    """
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        raise Invalid("a value of no known form")
    ((name, content),) = data.items()

    def inner(item: Any) -> Any:
        return decode(item, nodes)

    if name == "node":
        if nodes is None or content not in nodes:
            raise Invalid(f"an op that uses {content!r} before it is computed")
        return nodes[content]
    if name in _RECORDS:
        return _RECORDS[name](*(inner(item) for item in content))
    if name in _TORCH_KINDS:
        value = getattr(torch, content, None)
        if not isinstance(value, _TORCH_KINDS[name]):
            raise Invalid(f"{content!r} is no {name}")
        return value
    if name not in _DECODERS:
        raise Invalid(f"a value of the unknown type {name!r}")
    return _DECODERS[name](content, inner)


def _meta_tensor(content: Any, inner: Callable[[Any], Any]) -> Tensor:
    shape, dtype = content
    return torch.empty(shape, dtype=inner(dtype), device="meta")


_DECODERS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "tuple": lambda content, inner: tuple(inner(item) for item in content),
    "list": lambda content, inner: [inner(item) for item in content],
    "dict": lambda content, inner: {inner(key): inner(item) for key, item in content},
    "frozenset": lambda content, inner: frozenset(inner(item) for item in content),
    "phase": lambda content, inner: Phase(content),
    "device": lambda content, inner: torch.device(content),
    "tensor": _meta_tensor,
}
