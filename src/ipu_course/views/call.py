"""The former name of ``ipu_course.call_parts``."""

from __future__ import annotations

from ipu_course.call_parts import LOADING, CallParts, call_parts

__all__ = ["LOADING", "CallParts", "call_parts"]
