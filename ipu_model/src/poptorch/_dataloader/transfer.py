"""How the data set reaches the loader's process: a fork already has it, any other process maps a file."""

from __future__ import annotations

import types
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import IO, Any

import numpy as np
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from poptorch._dataloader.ring import SharedFile


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
        _save(self._value, self._file)
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
                f"the loader's process cannot rebuild the data set ({type(error).__name__}: {error}). Move "
                "classes and functions of a notebook cell or an interactive session to a module, or use "
                "SharingStrategy.Fork"
            ) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the file; another process may have it open."""
        if self._file is not None:
            self._file.close()


def _save(value: Any, file: SharedFile) -> None:
    pickler: Any = types.SimpleNamespace(Pickler=_Pickler, __name__=__name__)
    try:
        with open(file.path, "wb") as stream:
            torch.save(value, stream, pickle_module=pickler, pickle_protocol=5)
    except OSError:
        raise
    except Exception as error:
        # torch's error about a short file hides the actual reason why writing stopped.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise CannotSend(f"{type(error).__name__}: {error}") from error


class _Pickler(ForkingPickler):
    """Pickles what only a starting process can be given, such as locks, and leaves memory to `torch.save`.

    Otherwise torch would send every tensor as an open file, and processes may only have a few hundred of these.
    """

    def __init__(self, file: IO[bytes], protocol: int) -> None:
        super().__init__(file, protocol)

    def reducer_override(self, obj: Any) -> Any:
        """Replace the reductions that multiprocessing has for these types."""
        if isinstance(obj, _BaseDataLoaderIter):
            # This is how a loader keeps its persistent workers; the copy starts its own.
            return type(None), ()
        if isinstance(obj, torch.Tensor):
            return obj.__reduce_ex__(5)
        if type(obj) in (np.ndarray, np.memmap) and obj.flags.c_contiguous and not obj.dtype.hasobject:
            return _array_on, (_bytes_of(obj), obj.dtype, obj.shape)
        return NotImplemented


def _bytes_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a read-only array, which nothing here writes to
        return torch.from_numpy(np.asarray(array).reshape(-1).view(np.uint8))


def _array_on(memory: torch.Tensor, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    return memory.numpy().view(dtype).reshape(shape)
