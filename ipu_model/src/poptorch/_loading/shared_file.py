"""Memory that two processes share through a file without a name, so that nothing can be left behind."""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing.reduction import DupFd
from typing import Any

ALIGNMENT = 64


def aligned(offset: int) -> int:
    """Return the first multiple of the alignment, in bytes, that is not below `offset`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


class SharedFile:
    """An open file without a name; passed to a process as it starts, it is the same file there.

    The system frees it when the last process that opened or mapped it has ended, however it ended.
    """

    def __init__(self, descriptor: int, on_disk: bool) -> None:
        self._descriptor: int | None = descriptor
        self._on_disk = on_disk

    @classmethod
    def in_memory(cls) -> SharedFile:
        """Make a file that lives in memory only (on disk where the system has no such files)."""
        # Not in /dev/shm: containers limit it, often to 64 MB, and writing beyond the limit kills the
        # process.
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("poptorch-loader"), on_disk=False)
        return cls.on_disk()

    @classmethod
    def on_disk(cls) -> SharedFile:
        """Make a file in the folder for temporary files."""
        with tempfile.TemporaryFile(prefix="poptorch-loader-") as file:
            return cls(os.dup(file.fileno()), on_disk=True)

    @property
    def descriptor(self) -> int:
        """The file descriptor in this process."""
        assert self._descriptor is not None, "The shared file is closed."
        return self._descriptor

    def reserve(self, size: int) -> None:
        """Make the file `size` bytes long; raise `MemoryError` or `OSError` if there is no room for them."""
        if not self._on_disk and size > _installed_memory():
            raise MemoryError(f"Sharing {size} bytes between two processes takes more memory than there is.")
        if self._on_disk and hasattr(os, "posix_fallocate") and size:
            # A full disk shows now, as an error, and not as a signal at some later write.
            os.posix_fallocate(self.descriptor, 0, size)
        else:
            os.ftruncate(self.descriptor, size)

    def map(self) -> mmap.mmap | bytearray:
        """Return the whole file as writable memory, shared with every other process that maps it."""
        size = os.fstat(self.descriptor).st_size
        return mmap.mmap(self.descriptor, size) if size else bytearray()

    def close(self) -> None:
        """Close the descriptor; existing mappings stay valid."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (DupFd(self.descriptor), self._on_disk)

    def __del__(self) -> None:
        self.close()


def _opened(passed: Any, on_disk: bool) -> SharedFile:
    return SharedFile(passed.detach(), on_disk)


def _installed_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
