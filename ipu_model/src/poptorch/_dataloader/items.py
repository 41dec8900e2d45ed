"""The items of a loader: their structure, how they are made from batches or rows, and whose they are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from ipu_model.errors import require
from poptorch._utils import combined_batch_generator, getCustomParser
from poptorch.options import Options

Chunk = list[Tensor]
"""The tensors of an item, or of some rows of it."""


class ItemLoader(torch.utils.data.DataLoader[Any]):
    """A torch loader whose items may join several batches of a batch sampler along dimension 0.

    `combinedBatchSize` is the number of rows of a full item (`None` without batching), `keeps_remainder` says whether a
    shorter one may come last, `batches_per_item` is not `None` where items are made of a batch sampler's batches, and
    `loads_ahead` says whether a process of the loader's own does the loading.
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
        """Return the tensors of an item; refuse one that holds more than tensors, or differs from the first one."""
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
    """Cut and join `chunks` into items of exactly `rows` rows, lists of views on consecutive rows of the chunks.

    The remaining rows form a last, shorter item if `keep_remainder` is true and are dropped otherwise.
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


# --- a map-style data set divided between the processes of a distributed run, in contiguous ranges


@dataclass(frozen=True)
class Share:
    """The share of one process: `length` consecutive indices from `start`.

    Every second shuffled pass starts `shift` indices later, so that it reads some of the indices left over otherwise.
    """

    start: int
    length: int
    shift: int = 0


def share_of(samples: int, per_item: int, processes: int, process: int, drop_last: bool) -> Share:
    """Return the share of process `process` of `processes` in `samples` samples, `per_item` to an item.

    With `drop_last` every process gets the same whole number of items. Raises `ZeroDivisionError` if that is none.
    """
    if not drop_last:
        length, extra = divmod(samples, processes)
        return Share(process * length + min(process, extra), length + (process < extra))
    length = per_item * (samples // (per_item * processes))
    if length == 0:
        raise ZeroDivisionError(
            f"{samples} samples are too few for {processes} processes that load {per_item} samples per item: "
            f"with drop_last=True at least {per_item * processes} are needed."
        )
    return Share(process * length, length, samples % length)


class GlobalIndex(int):
    """An index into the whole data set rather than into one process's view of it."""


class _SubDataset(Dataset[Any]):
    """The part of a map-style data set that one process of a distributed run reads, `step` samples to an item.

    Indexed from 0: consecutive samples, or those of the last permutation; anywhere by `GlobalIndex`.
    """

    def __init__(self, dataset: Any, opts: Options, step: int, drop_last: bool) -> None:
        where = opts.Distributed
        self.share = share_of(len(dataset), step, where.numProcesses, where.processId, drop_last)
        self._dataset = dataset
        self._start = self.share.start
        self._permutation: torch.Tensor | None = None
        self._generator: torch.Generator | None = None
        if opts.exists("random_seed"):
            self._generator = torch.Generator().manual_seed(opts.random_seed)

    def check_common_seed(self) -> None:
        require(
            self._generator is not None,
            "Shuffling a dataset divided between processes needs the same seed in all of them: call "
            "options.randomSeed(seed) first.",
        )

    def shuffle_global_indices(self) -> None:
        """Draw a permutation of the whole data set, the same in every process of the same seed."""
        self.check_common_seed()
        self._permutation = torch.randperm(len(self._dataset), generator=self._generator)

    def swap_range(self) -> None:
        """Start later by the samples that no process reads, or again where it began."""
        begin = self.share.start
        self._start = begin + self.share.shift if self._start == begin else begin

    def __len__(self) -> int:
        return self.share.length

    def __getitem__(self, index: int) -> Any:
        if isinstance(index, GlobalIndex):
            return self._dataset[int(index)]
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"Index {index} is outside this process's {len(self)} samples.")
        at = self._start + index % len(self)
        return self._dataset[at if self._permutation is None else int(self._permutation[at])]

    def positions(self) -> list[GlobalIndex]:
        positions = range(len(self._dataset)) if self._permutation is None else self._permutation.tolist()
        return list(map(GlobalIndex, positions[self._start : self._start + len(self)]))


class ShuffledPart(Sampler[GlobalIndex]):
    """Draws a permutation of the whole data set for every pass and reads one process's part of it.

    If samples are left over, odd passes (including the first) start later, so that two passes together can reach every
    position. The permutation goes to torch's workers with each index: they keep their own copies of the data set.
    """

    def __init__(self, part: _SubDataset) -> None:
        self._part = part

    def __len__(self) -> int:
        return len(self._part)

    def __iter__(self) -> Iterator[GlobalIndex]:
        self._part.swap_range()
        self._part.shuffle_global_indices()
        return iter(self._part.positions())
