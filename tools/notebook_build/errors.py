"""The one exception of the build."""

from __future__ import annotations


class SourceError(Exception):
    """A lesson's source breaks a rule of the format; the message names lesson, cell and rule."""
