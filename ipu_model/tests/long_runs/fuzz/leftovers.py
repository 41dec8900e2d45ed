"""What a program may leave behind in its process: threads, processes, descriptors, memory maps, settings of torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class Leftovers:
    """A count of everything that must be the same after a program as before it."""

    threads: int
    processes: int
    descriptors: int
    shared_maps: int
    default_dtype: str
    gradients_enabled: bool
    inference_mode: bool
    dispatch_modes: int
    module_hooks: int
    fast_path: bool
    mkldnn: bool
    autocast: bool
    interrupt_handler: str

    @classmethod
    def now(cls) -> Leftovers:
        """Count."""
        hooks = torch.nn.modules.module
        return cls(
            threads=len(threading.enumerate()),
            processes=len(multiprocessing.active_children()),
            descriptors=len(os.listdir(_PROCESS / "fd")),
            shared_maps=_shared_maps(),
            default_dtype=str(torch.get_default_dtype()),
            gradients_enabled=torch.is_grad_enabled(),
            inference_mode=torch.is_inference_mode_enabled(),
            dispatch_modes=len(_get_current_dispatch_mode_stack()) + torch._C._len_torch_function_stack(),
            module_hooks=len(hooks._global_forward_hooks) + len(hooks._global_forward_pre_hooks),
            fast_path=torch.backends.mha.get_fastpath_enabled(),
            mkldnn=torch._C._get_mkldnn_enabled(),
            autocast=torch.is_autocast_enabled("cpu"),
            interrupt_handler=str(signal.getsignal(signal.SIGINT)),
        )

    def difference(self) -> str:
        """Return in words what has changed since, or nothing."""
        now = Leftovers.now()
        changes = [
            f"{field.name} {getattr(self, field.name)} -> {getattr(now, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(now, field.name)
        ]
        return ", ".join(changes)


def _shared_maps() -> int:
    lines = (_PROCESS / "maps").read_text().splitlines()
    return sum(1 for line in lines if "memfd:poptorch" in line or "/dev/shm/" in line)
