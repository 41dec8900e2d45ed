"""Stands in for Horovod where it is not installed: `horovod.torch` among the instances of `poprun`."""

from __future__ import annotations
