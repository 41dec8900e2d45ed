"""The items of a loader: their structure, and how they are made from batches or rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poptorch._utils import combined_batch_generator, getCustomParser

Chunk = list[Tensor]
"""The tensors of an item, or of some rows of it."""


class ItemLoader(torch.utils.data.DataLoader[Any]):
    """A torch loader whose items may join several batches of a batch sampler along dimension 0.

    `poptorch.DataLoader` is one, and its process iterates over another. `combinedBatchSize` is the number of rows of a
    full item (`None` without batching), `keeps_remainder` says whether a shorter one may come last, `batches_per_item`
    is not `None` where items are made of a batch sampler's batches, and `loads_ahead` says whether a process of the
    loader's own does the loading.
    """

    loads_ahead = False

    def __init__(
        self,
        dataset: Any,
        *,
        combined_batch_size: int | None,
        keeps_remainder: bool,
        batches_per_item: int | None = None,
        **torch_arguments: Any,
    ) -> None:
        self._combined_batch_size = combined_batch_size
        self.keeps_remainder = keeps_remainder
        self.batches_per_item = batches_per_item
        super().__init__(dataset, **torch_arguments)

    @property
    def combinedBatchSize(self) -> int | None:
        return self._combined_batch_size

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises a class of its own
        batches: Iterator[Any] = super().__iter__()
        if self.batches_per_item is None or self.batches_per_item == 1:
            return batches
        return combined_batch_generator(batches, self.batches_per_item, drop_last=not self.keeps_remainder)


@dataclass(frozen=True, eq=False)
class ItemStructure:
    """The structure of the first item: a tensor, a flat sequence or dict of tensors, or a registered custom type.

    `keys` names the tensors in it; `pattern` is an item of a custom type, from which further items are built.
    """

    kind: str
    keys: tuple[Hashable, ...]
    pattern: Any = None

    @classmethod
    def of(cls, item: Any) -> ItemStructure:
        """Return the structure of a first item; raise `TypeError` if it holds more than tensors."""
        kind, values = _taken_apart(item)
        structure = cls(kind, tuple(values), item if kind == "custom" else None)
        structure.flatten(item)
        return structure

    def flatten(self, item: Any) -> Chunk:
        """Return the tensors of an item.

        Raises `TypeError`: it holds more than tensors; `ValueError`: its structure differs from that of the first one.
        """
        kind, values = _taken_apart(item)
        if kind != self.kind or values.keys() != set(self.keys):
            expected = _described(self.kind, self.keys, self.pattern)
            raise ValueError(
                f"Every item must look like the first one, {expected}; got {_described(kind, tuple(values), item)}."
            )
        where = "The item" if kind == "tensor" else "Element {!r} of the item"
        return [_checked(values[key], where.format(key)) for key in self.keys]

    def rebuild(self, tensors: Chunk) -> Any:
        if self.kind == "tensor":
            return tensors[0]
        if self.kind == "sequence":
            return list(tensors)
        if self.kind == "dict":
            return dict(zip(self.keys, tensors, strict=True))
        parser, name = getCustomParser(self.pattern), type(self.pattern).__name__
        if parser is None:
            raise AssertionError(f"The parser of {name} was unregistered while a loader still uses it.")
        return parser.reconstruct(self.pattern, iter(tensors))


def _taken_apart(item: Any) -> tuple[str, dict[Hashable, Any]]:
    parser = getCustomParser(item)
    if parser is not None:
        return "custom", dict(enumerate(parser.yieldTensors(item)))
    if isinstance(item, dict):
        return "dict", dict(item)
    if isinstance(item, (tuple, list)):
        return "sequence", dict(enumerate(item))
    return "tensor", {0: item}


def _checked(value: Any, where: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{where} is not a torch tensor but a {type(value).__name__}. Items loaded in another process are a "
            "tensor, a flat tuple, list or dict of tensors, or a type registered with registerCustomArgParser(); "
            "DataLoaderMode.Sync accepts everything that torch accepts."
        )
    if value.layout is not torch.strided or value.is_quantized:
        raise TypeError(f"{where} is a torch tensor without a plain layout ({value.layout}): make it dense first.")
    return value


def _described(kind: str, keys: tuple[Hashable, ...], item: Any) -> str:
    if kind == "dict":
        return f"a dict with the keys {list(keys)}"
    if kind == "sequence":
        return f"a sequence of {len(keys)} tensors"
    if kind == "custom":
        return f"a {type(item).__name__} with {len(keys)} tensors"
    return "a tensor" if item is None else f"a {type(item).__name__}"


def glue(chunks: Iterable[Chunk], rows: int, keep_remainder: bool) -> Iterator[list[Chunk]]:
    """Cut and join `chunks` into items of exactly `rows` rows, in order and without copying.

    Each item is a list of views on consecutive rows of the chunks. The remaining rows form a last, shorter item if
    `keep_remainder` is true and are dropped otherwise. Raises `ValueError` if the tensors of a chunk have different
    numbers of rows.
    """
    held: list[Chunk] = []
    held_rows = 0
    for chunk in chunks:
        available = rows_of(chunk)
        start = 0
        while start < available:
            stop = min(available, start + rows - held_rows)
            held.append([tensor[start:stop] for tensor in chunk])
            held_rows += stop - start
            start = stop
            if held_rows == rows:
                yield held
                held, held_rows = [], 0
    if held and keep_remainder:
        yield held


def rows_of(chunk: Chunk) -> int:
    """Return the size of dimension 0, common to all tensors; raise `ValueError` if there is none."""
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in chunk}
    rows = sizes.pop() if len(sizes) == 1 else None
    if rows is None:
        raise ValueError(
            "Re-batching joins items along dimension 0, so all tensors of an item need the same size there; "
            f"got the shapes {[tuple(tensor.shape) for tensor in chunk]}."
        )
    return rows
