"""The items of a loader, and how they come to the program from a process of the loader's own.

The first half says how they are structured, made from batches or rows, and divided between instances. The second half
is the memory that both processes share: a data set on its way there, a ring of items on its way back.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import types
import warnings
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

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
    """The structure of the first item; `pattern` is an item of a custom type, from which further items are built."""

    kind: str
    keys: tuple[Hashable, ...]
    pattern: Any = None

    @classmethod
    def of(cls, item: Any) -> ItemStructure:
        kind, values = _taken_apart(item)
        structure = cls(kind, tuple(values), item if kind == "custom" else None)
        structure.flatten(item)
        return structure

    def flatten(self, item: Any) -> Chunk:
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
    """Cut and join chunks into items of exactly `rows` rows, but for a last remainder that may be kept."""
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
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in chunk}
    rows = sizes.pop() if len(sizes) == 1 else None
    if rows is None:
        raise ValueError(
            "Re-batching joins items along dimension 0, so all tensors of an item need the same size there; "
            f"got the shapes {[tuple(tensor.shape) for tensor in chunk]}."
        )
    return rows


# --- a map-style data set divided between the processes of a distributed run, in contiguous ranges


class GlobalIndex(int):
    """An index into the whole data set rather than into one process's view of it."""


class _SubDataset(Dataset[Any]):
    """The part of a map-style data set that one process of a distributed run reads, `step` samples to an item.

    With `drop_last` every process gets the same whole number of items. Indexed from 0: consecutive samples, or those of
    the last permutation; anywhere by `GlobalIndex`.
    """

    def __init__(self, dataset: Any, opts: Options, step: int, drop_last: bool) -> None:
        process, processes, samples = opts.Distributed.processId, opts.Distributed.numProcesses, len(dataset)
        length, extra = divmod(samples, processes)
        begin, self._length, self._shift = process * length + min(process, extra), length + (process < extra), 0
        if drop_last:
            self._length = step * (samples // (step * processes))
            if self._length == 0:
                raise ZeroDivisionError(
                    f"{samples} samples are too few for {processes} processes that load {step} samples per item: "
                    f"with drop_last=True at least {step * processes} are needed."
                )
            # Every second shuffled pass starts later, so that it reads some of the samples left over otherwise.
            begin, self._shift = process * self._length, samples % self._length
        self._dataset = dataset
        self._begin = self._start = begin
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
        self._start = self._begin + self._shift if self._start == self._begin else self._begin

    def __len__(self) -> int:
        return self._length

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

    The permutation goes to torch's workers with each index: they keep their own copies of the data set.
    """

    def __init__(self, part: _SubDataset) -> None:
        self._part = part

    def __len__(self) -> int:
        return len(self._part)

    def __iter__(self) -> Iterator[GlobalIndex]:
        self._part.swap_range()
        self._part.shuffle_global_indices()
        return iter(self._part.positions())


_ALIGNMENT = 64


class SharedFile:
    """An open file without a name, which a starting process can inherit and even a crash does not leave behind."""

    def __init__(self, *, on_disk: bool = False) -> None:
        # Not in /dev/shm: containers limit it, often to 64 MB, and writing beyond the limit kills the process.
        if on_disk or not hasattr(os, "memfd_create"):
            with tempfile.TemporaryFile(prefix="poptorch-loader-") as file:
                self._descriptor = os.dup(file.fileno())
        else:
            self._descriptor = os.memfd_create("poptorch-loader")

    @property
    def path(self) -> str:
        return f"/dev/fd/{self._descriptor}"

    def map(self, size: int) -> mmap.mmap | bytearray:
        """Return the first `size` bytes as writable memory, shared with every other process that maps them."""
        if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            raise MemoryError(f"Sharing {size} bytes between two processes needs more memory than is available.")
        os.ftruncate(self._descriptor, size)
        return mmap.mmap(self._descriptor, size) if size else bytearray()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __getstate__(self) -> Any:
        return DupFd(self._descriptor)

    def __setstate__(self, passed: Any) -> None:
        self._descriptor = passed.detach()

    def __del__(self) -> None:
        self.close()


Layout = tuple[tuple[torch.Size, torch.dtype], ...]
"""The shapes and types of the tensors of an item."""


class Ring:
    """The slots as tensors on a shared file; the loader's process writes them, the program's reads them."""

    def __init__(self, file: SharedFile, layout: Layout, slots: int) -> None:
        sizes = [-(-shape.numel() * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for shape, dtype in layout * slots]
        memory, starts = file.map(sum(sizes)), accumulate(sizes, initial=0)
        self._slots = [[_view(memory, next(starts), *tensor) for tensor in layout] for _ in range(slots)]

    def write(self, slot: int, item: Sequence[Chunk], *, by_rows: bool) -> int | None:
        """Copy the chunks of an item along dimension 0 and return how many rows they fill, or `None` for all.

        Shapes must be those of the first item; with `by_rows`, dimension 0 may be shorter.
        """
        slots = self._slots[slot]
        whole = list(zip(slots, item[0], strict=True))
        if len(item) == 1 and all(target.shape == source.shape for target, source in whole):
            for target, source in whole:
                # Without detach() a sample that requires gradients would tie the slot to its history.
                target.copy_(source.detach())
            return None
        if not by_rows:
            raise ValueError(
                f"Every item must have the shapes of the first one: expected {[tuple(slot.shape) for slot in slots]}, "
                f"got {[tuple(tensor.shape) for tensor in item[0]]}. Pad samples, drop the last batch, or give a "
                "rebatched_size."
            )
        end = 0
        for chunk in item:
            start, end = end, end + rows_of(chunk)
            for target, source in zip(slots, chunk, strict=True):
                if end > target.shape[0] or target.shape[1:] != source.shape[1:]:
                    raise ValueError(
                        f"A batch of shape {tuple(source.shape)} does not fit into rows {start} to {end - 1} "
                        f"of {tuple(target.shape)}; only dimension 0 may differ from the first item."
                    )
                target[start:end].copy_(source.detach())
        return end

    def read(self, slot: int, rows: int | None) -> list[Tensor]:
        return [tensor if rows is None else tensor[:rows] for tensor in self._slots[slot]]


def _view(memory: Any, start: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    if shape.numel() == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=shape.numel(), offset=start).view(shape)


class CannotSend(Exception):
    """Something in the value cannot be pickled."""


class CannotReceive(Exception):
    """Something in the value cannot be rebuilt in the receiving process."""


class Transfer:
    """A value for a process that is being started; `file` is where it is saved, unless the process is forked."""

    def __init__(self, value: Any, file: SharedFile | None) -> None:
        self._value, self._file = value, file

    # The value is saved while the process is starting: only then can locks and queues be pickled.
    def __getstate__(self) -> dict[str, Any]:
        assert self._file is not None
        pickler: Any = types.SimpleNamespace(Pickler=_Pickler, __name__=__name__)
        try:
            with open(self._file.path, "wb") as stream:
                torch.save(self._value, stream, pickle_module=pickler, pickle_protocol=5)
        except OSError:
            raise
        except Exception as error:
            # torch's error about a short file hides the actual reason why writing stopped.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise CannotSend(f"{type(error).__name__}: {error}") from error
        return {"_value": None, "_file": self._file}

    def open(self) -> Any:
        """Return the value: the object itself in a forked process, an equal one with mapped tensors in another."""
        if self._value is not None:
            return self._value
        assert self._file is not None
        try:
            return torch.load(self._file.path, mmap=True, weights_only=False)
        except Exception as error:
            raise CannotReceive(
                f"the loader's process cannot rebuild the data set ({type(error).__name__}: {error}). Move classes "
                "and functions of a notebook cell or an interactive session to a module, or use SharingStrategy.Fork"
            ) from error
        finally:
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Pickler(ForkingPickler):
    """Pickles what only a starting process can be given, such as locks, and leaves memory to `torch.save`.

    Otherwise torch would send every tensor as an open file, and processes may only have a few hundred of these.
    """

    def __init__(self, file: IO[bytes], protocol: int) -> None:
        super().__init__(file, protocol)  # torch passes it by name, which the base class does not take

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _BaseDataLoaderIter):
            # This is how a loader keeps its persistent workers; the copy starts its own.
            return type(None), ()
        if isinstance(obj, torch.Tensor):
            return obj.__reduce_ex__(5)
        if type(obj) in (np.ndarray, np.memmap) and obj.flags.c_contiguous and not obj.dtype.hasobject:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a read-only array, which nothing here writes to
                memory = torch.from_numpy(np.asarray(obj).reshape(-1).view(np.uint8))
            return _array_on, (memory, obj.dtype, obj.shape)
        return NotImplemented


def _array_on(memory: torch.Tensor, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    return memory.numpy().view(dtype).reshape(shape)
