"""What a program may leave behind in its process: threads, processes, descriptors, memory maps, settings of torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def _shared_maps() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(1 for line in lines if "memfd:poptorch" in line or "/dev/shm/" in line)


_COUNTED: dict[str, Callable[[], Any]] = {
    "threads": lambda: len(threading.enumerate()),
    "processes": lambda: len(multiprocessing.active_children()),
    "descriptors": lambda: len(os.listdir("/proc/self/fd")),
    "shared_maps": _shared_maps,
    "default_dtype": torch.get_default_dtype,
    "gradients_enabled": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "dispatch_modes": lambda: len(_get_current_dispatch_mode_stack()) + torch._C._len_torch_function_stack(),
    "module_hooks": lambda: len(module._global_forward_hooks) + len(module._global_forward_pre_hooks),
    "fast_path": torch.backends.mha.get_fastpath_enabled,
    "mkldnn": torch._C._get_mkldnn_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "interrupt_handler": lambda: str(signal.getsignal(signal.SIGINT)),
}


class Leftovers(dict[str, Any]):
    """By name, everything that must be the same after a program as before it."""

    @classmethod
    def now(cls) -> Leftovers:
        return cls({name: count() for name, count in _COUNTED.items()})

    def difference(self) -> str:
        """Return in words what has changed since, or nothing."""
        now = Leftovers.now()
        return ", ".join(f"{name} {before} -> {now[name]}" for name, before in self.items() if before != now[name])
