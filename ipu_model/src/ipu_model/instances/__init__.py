"""The instances of a run: host processes that train one model together and reduce over `torch.distributed`'s gloo."""

from __future__ import annotations

from ipu_model.instances.group import Group, Operation
from ipu_model.instances.joining import joined, leave, world

__all__ = ["Group", "Operation", "joined", "leave", "world"]
