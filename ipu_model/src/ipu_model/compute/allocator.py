"""Keep freed memory in the process, so that new large tensors cause no page faults.

glibc returns large blocks to the kernel at every free. A replay frees and allocates the same blocks in each
micro-batch. Keeping them makes steps faster and their times steadier (`make bench` measures both), but the process
keeps its peak memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

# Parameters of glibc's mallopt(3), and values that keep blocks of up to 1 GiB on the heap, untrimmed up to 2 GiB.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BLOCK_BYTES = 2**31 - 1, 2**30

SWITCH = "IPU_MODEL_KEEP_MEMORY"


@cache
def keep_freed_memory() -> bool:
    """Ask the C library, once per process, to keep freed blocks; return whether it agreed.

    Only glibc on Linux has the setting; the environment variable `IPU_MODEL_KEEP_MEMORY=0` turns it off.
    """
    if not sys.platform.startswith("linux") or os.environ.get(SWITCH) == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        # Another C library (musl, say).
        return False
    mapped = mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES)
    return bool(mapped and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
