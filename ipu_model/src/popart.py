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
from typing import Any, NoReturn

import poptorch
from ipu_model.process import installed_instead
from poptorch.options.backend import key_tables

__all__ = [
    "AccumulateOuterFragmentSchedule", "BatchSerializationBatchSchedule", "BatchSerializationMethod",
    "BatchSerializationTransformContext", "GradientTensorTrackingMethod", "Instrumentation", "MeanReductionStrategy",
    "MergeVarUpdateType", "RecomputationType", "ReductionType", "ReplicatedTensorSharding", "SubgraphCopyingStrategy",
    "SyntheticDataMode", "TensorLocation", "TensorStorage", "TileSet", "VirtualGraphMode", "versionString",
]  # fmt: skip

# Submodules are looked for, so that the finder below can refuse them by name.
__path__: list[str] = []


class _Enumeration(IntEnum):
    """Prints its members as PopART does: by name."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


_made: Callable[..., Any] = _Enumeration


def _enumeration(name: str, first: str | None = None) -> Any:
    """Return an enumeration of PopART's; `first` names its first member where that is `None`, no name in Python."""
    members = enumerate(key_tables().enumerations[name])
    renamed = [] if first is None else [(first, 0)]
    return _made(name, [*renamed, *((member, value) for value, member in members)], module=__name__)


AccumulateOuterFragmentSchedule = _enumeration("AccumulateOuterFragmentSchedule")
BatchSerializationBatchSchedule = _enumeration("BatchSerializationBatchSchedule")
BatchSerializationMethod = _enumeration("BatchSerializationMethod")
BatchSerializationTransformContext = _enumeration("BatchSerializationTransformContext")
GradientTensorTrackingMethod = _enumeration("GradientTensorTrackingMethod")
Instrumentation = _enumeration("Instrumentation")
MeanReductionStrategy = _enumeration("MeanReductionStrategy")
MergeVarUpdateType = _enumeration("MergeVarUpdateType", first="Off")
RecomputationType = _enumeration("RecomputationType", first="NoRecompute")
ReductionType = _enumeration("ReductionType")
SubgraphCopyingStrategy = _enumeration("SubgraphCopyingStrategy")
SyntheticDataMode = _enumeration("SyntheticDataMode")
VirtualGraphMode = _enumeration("VirtualGraphMode")


# Those of a `TensorLocation`: in the tiles' memory or in streaming memory, whole or sharded, through which tiles.
TensorStorage = _made("TensorStorage", ["OnChip", "OffChip"], start=0, module=__name__)
ReplicatedTensorSharding = _made("ReplicatedTensorSharding", ["Off", "On"], start=0, module=__name__)
TileSet = _made("TileSet", ["Compute", "IO"], start=0, module=__name__)


def _member_of(kind: type[_Enumeration], key: str) -> property:
    return property(lambda location: kind(int(location._values.get(key, False))))


_SHORT = ("storage", "replicatedTensorSharding")
_LONG = ("storage", "loadTileSet", "storageTileSet", "replicatedTensorSharding")


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
        if "storage" in given:
            self.useOnChipStorage(TensorStorage(given["storage"]) is TensorStorage.OnChip)
        if "replicatedTensorSharding" in given:
            self.useReplicatedTensorSharding(bool(ReplicatedTensorSharding(given["replicatedTensorSharding"])))
        if "loadTileSet" in given:
            self.useIOTilesToLoad(TileSet(given["loadTileSet"]) is TileSet.IO)
        if "storageTileSet" in given:
            self.useIOTilesToStore(TileSet(given["storageTileSet"]) is TileSet.IO)

    @property
    def storage(self) -> Any:
        return TensorStorage.OffChip if self._values.get("onChip") == 0 else TensorStorage.OnChip

    replicatedTensorSharding = _member_of(ReplicatedTensorSharding, "useReplicatedTensorSharding")
    loadTileSet = _member_of(TileSet, "useIOTilesToLoad")
    storageTileSet = _member_of(TileSet, "useIOTilesToStore")


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


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(name if name.startswith("__") else _what_it_is(name))


class _Refusal(MetaPathFinder):
    """Explains why `from popart import Builder` and `import popart.ir` fail."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        package, _, name = fullname.partition(".")
        if package == __name__ and not name.startswith("__"):
            raise ModuleNotFoundError(_what_it_is(name))


if not installed_instead(__name__, __file__):
    sys.meta_path.append(_Refusal())
