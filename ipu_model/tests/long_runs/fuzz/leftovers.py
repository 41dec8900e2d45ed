"""What a program may leave behind in its process: threads, processes, descriptors, memory maps, settings of torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from torch.nn.modules import module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def _dispatch_modes() -> int:
    return len(_get_current_dispatch_mode_stack()) + torch._C._len_torch_function_stack()


def _shared_maps() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(1 for line in lines if "memfd:poptorch" in line or "/dev/shm/" in line)


@dataclass(frozen=True)
class Leftovers:
    """A count of everything that must be the same after a program as before it."""

    threads: int = field(default_factory=lambda: len(threading.enumerate()))
    processes: int = field(default_factory=lambda: len(multiprocessing.active_children()))
    descriptors: int = field(default_factory=lambda: len(os.listdir("/proc/self/fd")))
    shared_maps: int = field(default_factory=_shared_maps)
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    gradients_enabled: bool = field(default_factory=torch.is_grad_enabled)
    inference_mode: bool = field(default_factory=torch.is_inference_mode_enabled)
    dispatch_modes: int = field(default_factory=_dispatch_modes)
    module_hooks: int = field(
        default_factory=lambda: len(module._global_forward_hooks) + len(module._global_forward_pre_hooks)
    )
    fast_path: bool = field(default_factory=torch.backends.mha.get_fastpath_enabled)
    mkldnn: bool = field(default_factory=torch._C._get_mkldnn_enabled)
    autocast: bool = field(default_factory=lambda: torch.is_autocast_enabled("cpu"))
    interrupt_handler: str = field(default_factory=lambda: str(signal.getsignal(signal.SIGINT)))

    @classmethod
    def now(cls) -> Leftovers:
        return cls()

    def difference(self) -> str:
        """Return in words what has changed since, or nothing."""
        pairs = ((each.name, getattr(self, each.name), getattr(Leftovers.now(), each.name)) for each in fields(self))
        return ", ".join(f"{name} {before} -> {after}" for name, before, after in pairs if before != after)
