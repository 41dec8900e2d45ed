"""The IPU Model's engine: one captured graph, read by the numerics and by the performance model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipu_model import scaling
    from ipu_model.host_work import HostWork
    from ipu_model.profiling.data import Profile
    from ipu_model.profiling.entry import profile, profile_module
    from ipu_model.profiling.exploring import advise, sweep, what_if

__all__ = ["HostWork", "Profile", "advise", "profile", "profile_module", "scaling", "sweep", "what_if"]

_HOMES = {
    "HostWork": "ipu_model.host_work",
    "Profile": "ipu_model.profiling.data",
    "advise": "ipu_model.profiling.exploring",
    "profile": "ipu_model.profiling.entry",
    "profile_module": "ipu_model.profiling.entry",
    "sweep": "ipu_model.profiling.exploring",
    "what_if": "ipu_model.profiling.exploring",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: commands such as `--help` then need no torch."""
    if name == "scaling":
        return import_module("ipu_model.scaling")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
