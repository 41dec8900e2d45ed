"""The former name of ``ipu_course.epoch_parts``."""

from __future__ import annotations

from ipu_course.epoch_parts import CALLS, IPUS, LOADING, epoch_parts, show_epoch_parts

__all__ = ["CALLS", "IPUS", "LOADING", "epoch_parts", "show_epoch_parts"]
