"""PyTorch Geometric's graphs as arguments, outputs and loader items."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from poptorch._utils import (
    ICustomArgParser,
    flattenTensorStructure,
    reconstructTensorStructure,
    registerCustomArgParser,
)


class _Graphs(ICustomArgParser):
    """Extracts the tensors, by name, from the stores of a `Data`, a `HeteroData` or a batch of these."""

    def yieldTensors(self, struct: Any) -> Iterable[Tensor]:
        """Return the tensors, store by store, those of each in the order of their names."""
        return [tensor for store in struct.stores for tensor in flattenTensorStructure(_by_name(store))]

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """Return a graph whose stores hold the next tensors."""
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
