"""The IPU Model's engine: one captured graph, read by the numerics and by the performance model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipu_model.host_work import HostWork
    from ipu_model.profiling.entry import profile, profile_module

__all__ = ["HostWork", "profile", "profile_module"]

_HOMES = {
    "HostWork": "ipu_model.host_work",
    "profile": "ipu_model.profiling.entry",
    "profile_module": "ipu_model.profiling.entry",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: commands such as `--help` then need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
