"""How the data set reaches the loader's process: inherited, pickled whole, or with its arrays in a file."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from poptorch._loading.shared_file import SharedFile, aligned


class CannotSend(Exception):
    """Something in the value cannot be pickled."""


class CannotReceive(Exception):
    """Something in the value means nothing to the process that got it."""


class Parcel(Protocol):
    """A value on its way to a new process."""

    def open(self) -> Any:
        """Return the value; called in the new process."""
        ...

    def close(self) -> None:
        """Free what only the journey needed; called in the old process."""
        ...


class Inherited:
    """The very object, for a process that is forked."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def open(self) -> Any:
        """Return the value."""
        return self._value

    def close(self) -> None:
        """Nothing to free."""


class Pickled:
    """A value that travels as one string of bytes."""

    def __init__(self, value: Any) -> None:
        self._value = value

    # Pickling happens while the process is being started: only then do locks and queues allow it.
    def __reduce__(self) -> tuple[Any, ...]:
        return PickledHere, (_pickle(self._value, None),)

    def open(self) -> Any:
        """Return the value: it never left this process."""
        return self._value

    def close(self) -> None:
        """Nothing to free."""


class PickledHere:
    """A pickled value at its destination."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self) -> Any:
        """Unpickle the value."""
        # The process keeps its arguments for life; the bytes need not stay with them.
        data, self._data = self._data, b""
        return _unpickle(data, [])


class InFile:
    """A value whose tensors and arrays travel in a shared file, which the new process uses in place."""

    def __init__(self, value: Any, file: SharedFile) -> None:
        self._value = value
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        buffers: list[pickle.PickleBuffer] = []
        data = _pickle(self._value, buffers.append)
        extents: list[tuple[int, int]] = []
        end = 0
        for buffer in buffers:
            start = aligned(end)
            end = start + buffer.raw().nbytes
            extents.append((start, end))
        self._file.reserve(end)
        memory = memoryview(self._file.map())
        for (start, stop), buffer in zip(extents, buffers, strict=True):
            memory[start:stop] = buffer.raw()
        return FileHere, (data, extents, self._file)

    def open(self) -> Any:
        """Return the value: it never left this process."""
        return self._value

    def close(self) -> None:
        """Close the file; the other process has it open by now."""
        self._file.close()


class FileHere:
    """A value in a shared file at its destination."""

    def __init__(self, data: bytes, extents: list[tuple[int, int]], file: SharedFile) -> None:
        self._data = data
        self._extents = extents
        self._file = file

    def open(self) -> Any:
        """Unpickle the value on top of the mapped file."""
        memory = memoryview(self._file.map())
        self._file.close()
        return _unpickle(self._data, [memory[start:stop] for start, stop in self._extents])


def _pickle(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], None] | None) -> bytes:
    stream = io.BytesIO()
    try:
        _Pickler(stream, 5, True, buffer_callback).dump(value)
    except Exception as error:
        raise CannotSend(f"{type(error).__name__}: {error}") from error
    return stream.getvalue()


def _unpickle(data: bytes, buffers: list[memoryview]) -> Any:
    try:
        return pickle.loads(data, buffers=buffers)
    except Exception as error:
        raise CannotReceive(
            f"the loader's process cannot rebuild the data set ({type(error).__name__}: {error}). Move "
            "classes and functions of a notebook cell or an interactive session to a module, or use "
            "SharingStrategy.Fork"
        ) from error


class _Storage:
    """The bytes of one tensor storage, pickled as a buffer; several tensors may share it."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._bytes: memoryview = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data

    def __reduce__(self) -> tuple[Any, ...]:
        return _storage_on, (pickle.PickleBuffer(self._bytes),)


class _Pickler(ForkingPickler):
    """Pickles what a starting process can be given, but tensors as plain bytes.

    torch's own way sends every tensor as an open file, and processes may only have a few hundred of these.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._storages: dict[int, _Storage] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Replace torch's registered reductions for tensors and storages."""
        if isinstance(obj, _BaseDataLoaderIter):
            # A loader remembers its persistent workers in this way; its copy will start its own.
            return type(None), ()
        if type(obj) is torch.Tensor and _is_plain(obj):
            storage = obj.untyped_storage()
            if storage.data_ptr() not in self._storages:
                self._storages[storage.data_ptr()] = _Storage(storage)
            place = (obj.storage_offset(), tuple(obj.shape), obj.stride())
            return _tensor_on, (self._storages[storage.data_ptr()], obj.dtype, place, obj.requires_grad)
        if isinstance(obj, (torch.Tensor, torch.UntypedStorage, torch.storage.TypedStorage)):
            return obj.__reduce_ex__(2)
        return NotImplemented


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.untyped_storage().nbytes() > 0
        and not tensor.__dict__
    )


def _storage_on(buffer: Any) -> torch.UntypedStorage:
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _tensor_on(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    place: tuple[int, tuple[int, ...], tuple[int, ...]],
    requires_grad: bool,
) -> torch.Tensor:
    offset, shape, stride = place
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
    return tensor.requires_grad_(requires_grad)
