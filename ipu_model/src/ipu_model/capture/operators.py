"""Which ops PopTorch's compiler takes, from `data/operators.toml`, and how it refuses a program that has others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from ipu_model.source_lines import SourceLine

# Of libraries and of this package: ops that PopTorch has itself.
_OTHER_HANDLERS = frozenset({"ipu_model", "prim", "prims", "torch_cluster", "torch_scatter", "torch_spline_conv"})

_USUALLY = "Compute it on the host, in the data set, or write it with ops that docs/support.md lists."


class _Table(msgspec.Struct):
    handlers: str
    taken_apart: str
    newer: str
    whole: list[str]
    instead: dict[str, str]
    of_fixed_shape: dict[str, str]


@cache
def table() -> _Table:
    return msgspec.toml.decode((files("ipu_model") / "data" / "operators.toml").read_bytes(), type=_Table)


def name_of(func: Any) -> str:
    """Return the name of an op without its overload, such as `aten::add` for `aten.add_.Tensor`."""
    name: str = func._schema.name
    return name if name.endswith("__") else name.removesuffix("_")


def kind_of(target: Any) -> str:
    """Return the name of an op without namespace and overload, or of a function."""
    return (
        name_of(target).rpartition("::")[2] if hasattr(target, "_schema") else getattr(target, "__name__", str(target))
    )


@cache
def has_handler(func: Any) -> bool:
    if func.namespace != "aten":
        return func.namespace in _OTHER_HANDLERS
    return kind_of(func) in f"{table().handlers} {table().taken_apart} {table().newer}".split()


def without_handler(name: str, scope: str, line: SourceLine | None) -> str:
    """Say which module and line of the user's called an op without a handler, and the nearest thing that works."""
    advice = table().instead.get(name.removeprefix("aten::"), _USUALLY)
    return f"{name} (module '{scope or 'model'}', {line or 'unknown line'}): {advice}"


def poptorchs_words(names: Iterable[str]) -> str:
    return (
        f"Unsupported ops found in compiled model: [{', '.join(names)}]. Not all operations are supported "
        "yet by Graphcore's PyTorch compiler. If you believe any of these should be, please report this message to "
        "Graphcore."
    )


def refusal(unsupported: Mapping[str, str]) -> str:
    """Return PopTorch's error, then what `without_handler` says of each name."""
    return "\n".join([poptorchs_words(unsupported), *unsupported.values()])
