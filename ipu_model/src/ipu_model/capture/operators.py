"""Which ops PopTorch's compiler takes, from `data/operators.toml`, and how it refuses a program that has others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    whole: str
    instead: dict[str, str]


@cache
def table() -> _Table:
    return msgspec.toml.decode((files("ipu_model") / "data" / "operators.toml").read_bytes(), type=_Table)


@cache
def _compiled() -> frozenset[str]:
    return frozenset(f"{table().handlers} {table().taken_apart} {table().newer}".split())


@cache
def whole_functions() -> frozenset[str]:
    return frozenset(table().whole.split())


def name_of(func: Any) -> str:
    """Return the name of an op without its overload, such as `aten::add` for `aten.add_.Tensor`."""
    name: str = func._schema.name
    return name if name.endswith("__") else name.removesuffix("_")


@cache
def has_handler(func: Any) -> bool:
    if func.namespace != "aten":
        return func.namespace in _OTHER_HANDLERS
    return name_of(func).removeprefix("aten::") in _compiled()


@dataclass(frozen=True)
class Unsupported:
    """An op without a handler: its name, and the module and the user's line that called it."""

    name: str
    scope: str
    line: SourceLine | None

    def __str__(self) -> str:
        advice = table().instead.get(self.name.removeprefix("aten::"), _USUALLY)
        return f"{self.name} (module '{self.scope or 'model'}', {self.line or 'unknown line'}): {advice}"


def poptorchs_words(names: Sequence[str]) -> str:
    return (
        f"Unsupported ops found in compiled model: [{', '.join(names)}]. Not all operations are supported "
        "yet by Graphcore's PyTorch compiler. If you believe any of these should be, please report this message to "
        "Graphcore."
    )


def refusal(ops: Sequence[Unsupported]) -> str:
    """Return PopTorch's error, then for each name the first place that has it and the nearest thing that works."""
    names = list(dict.fromkeys(op.name for op in ops))
    first = {op.name: op for op in reversed(ops)}
    return "\n".join([poptorchs_words(names), *(str(first[name]) for name in names)])
