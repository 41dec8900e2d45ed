"""A substitute for PopART if it is not installed: the names that PopTorch programs use to set options.

These are enumerations, whose members are the ints that `poptorch.Options()._Popart.set` takes, and `TensorLocation`,
which the setters of `poptorch.Options().TensorLocations` take. Every other name is refused when it is used.

An installed PopART always comes first. As a package it precedes this module in the same folder; a search of its own
finds it in a later one.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

import poptorch
from ipu_model.process import installed_instead
from poptorch.options.backend import key_tables

# Submodules are looked for, so that the finder below can refuse them by name.
__path__: list[str] = []


class _Enumeration(IntEnum):
    """Prints its members as PopART does: by name."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


_made: Callable[..., Any] = _Enumeration

# Those of a `TensorLocation`: in the tiles' memory or in streaming memory, whole or sharded, through which tiles.
_OF_LOCATIONS = {
    "TensorStorage": ("OnChip", "OffChip"),
    "ReplicatedTensorSharding": ("Off", "On"),
    "TileSet": ("Compute", "IO"),
}
# Names in Python of first members that are called `None`.
_FIRST = {"MergeVarUpdateType": "Off", "RecomputationType": "NoRecompute"}


def _enumeration(name: str, members: Sequence[str]) -> Any:
    names = [(_FIRST[name], 0)] if name in _FIRST else []
    return _made(name, [*names, *((member, value) for value, member in enumerate(members))], module=__name__)


_tables = {**key_tables().enumerations, **_OF_LOCATIONS}
# What PopART calls the levels of its patterns is a class of another kind.
_ENUMERATIONS = {name: _enumeration(name, members) for name, members in _tables.items() if name != "PatternsLevel"}
globals().update(_ENUMERATIONS)
__all__ = [*_ENUMERATIONS, "TensorLocation", "versionString"]

# What a location says, with its enumeration, and the key among PopTorch's settings.
_PARTS = {
    "storage": (_ENUMERATIONS["TensorStorage"], "onChip"),
    "loadTileSet": (_ENUMERATIONS["TileSet"], "useIOTilesToLoad"),
    "storageTileSet": (_ENUMERATIONS["TileSet"], "useIOTilesToStore"),
    "replicatedTensorSharding": (_ENUMERATIONS["ReplicatedTensorSharding"], "useReplicatedTensorSharding"),
}
_SHORT, _LONG = ("storage", "replicatedTensorSharding"), tuple(_PARTS)


class TensorLocation(poptorch.TensorLocationSettings):
    """A place for tensors that the setters of `poptorch.Options().TensorLocations` take.

    What is left out stays at the backend's default, as in `poptorch.TensorLocationSettings`.
    """

    def __init__(self, *values: int, **named: int) -> None:
        """Take PopART's forms: (storage), (storage, sharding) or (storage, loading tiles, storing tiles, sharding)."""
        super().__init__()
        names = _SHORT if len(values) <= len(_SHORT) and "loadTileSet" not in named else _LONG
        given = {**dict(zip(names, values)), **named}
        if len(given) < len(values) + len(named) or not given.keys() <= set(names):
            raise TypeError(
                f"popart.TensorLocation takes ({', '.join(_SHORT)}) or ({', '.join(_LONG)}). PopTorch's options have "
                "no sharding domain."
            )
        for name, value in given.items():
            kind, key = _PARTS[name]
            # PopTorch stores whether tensors are on chip, PopART whether they are not.
            self.createOrSet(**{key: int(kind(value)) ^ (key == "onChip")})

    def __getattr__(self, name: str) -> Any:
        if name not in _PARTS:
            return super().__getattr__(name)
        kind, key = _PARTS[name]
        return kind(int(self._values.get(key, key == "onChip")) ^ (key == "onChip"))


def versionString() -> str:
    """Return PopTorch's version; the part after the + says that this is the IPU Model."""
    return poptorch.__version__


def _what_it_is(name: str) -> str:
    near = difflib.get_close_matches(name, __all__, n=1)
    instead = "To run a model, wrap a torch.nn.Module with poptorch.trainingModel or poptorch.inferenceModel."
    return (
        f"popart.{name} is not available, because PopART is not installed. This substitute has only the enumerations "
        "and the TensorLocation that PopTorch programs pass to their options; it cannot build or run graphs. "
        + (f"Did you mean popart.{near[0]}?" if near else instead)
    )


def __getattr__(name: str) -> Any:
    raise AttributeError(name if name.startswith("__") else _what_it_is(name))


class _Refusal(MetaPathFinder):
    """Explains why `from popart import Builder` and `import popart.ir` fail."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        package, _, name = fullname.partition(".")
        if package == __name__ and not name.startswith("__"):
            raise ModuleNotFoundError(_what_it_is(name))


if not installed_instead(__name__, __file__):
    sys.meta_path.append(_Refusal())
