"""Memory that the program and the loader's process share: a data set on its way there, a ring of items on its way back.

A forked process already has the data set, any other maps a file. The ring is a fixed number of slots, each with room
for the tensors of one item.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter

from poptorch._dataloader.items import Chunk, rows_of

_ALIGNMENT = 64


class SharedFile:
    """An open file without a name, so that no file is left behind; a starting process can inherit it.

    The system frees it when the last process that has it open or mapped ends, even by a crash.
    """

    def __init__(self, *, on_disk: bool = False) -> None:
        # Not in /dev/shm: containers limit it, often to 64 MB, and writing beyond the limit kills the process.
        if on_disk or not hasattr(os, "memfd_create"):
            with tempfile.TemporaryFile(prefix="poptorch-loader-") as file:
                self._descriptor = os.dup(file.fileno())
        else:
            self._descriptor = os.memfd_create("poptorch-loader")

    @property
    def path(self) -> str:
        """A name under which this process can open the file once more."""
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


@dataclass(frozen=True)
class RingLayout:
    """Shape and element type of each tensor of an item, the same in all slots."""

    tensors: tuple[tuple[torch.Size, torch.dtype], ...]
    slots: int

    @classmethod
    def for_items_like(cls, item: Chunk, slots: int, rows: int | None = None) -> RingLayout:
        """Lay out slots for items shaped like `item`, or with `rows` rows where given."""
        shapes = [tensor.shape if rows is None else torch.Size((rows, *tensor.shape[1:])) for tensor in item]
        return cls(tuple((shape, tensor.dtype) for shape, tensor in zip(shapes, item, strict=True)), slots)


class Ring:
    """The slots as tensors on a shared file; the loader's process writes them, the program's reads them."""

    def __init__(self, file: SharedFile, layout: RingLayout) -> None:
        starts, end = [], 0
        for shape, dtype in layout.tensors * layout.slots:
            starts.append(end)
            end += -(-shape.numel() * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        memory, places, tensors = file.map(end), iter(starts), layout.tensors
        self._slots = [[_view(memory, next(places), *tensor) for tensor in tensors] for _ in range(layout.slots)]

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
        self._value, self._file, self._saved = value, file, False

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
        return {"_value": None, "_file": self._file, "_saved": True}

    def open(self) -> Any:
        """Return the value: the object itself in a forked process, an equal one with mapped tensors in another."""
        if not self._saved:
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
        super().__init__(file, protocol)

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
