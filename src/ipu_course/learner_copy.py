"""What the first cell of every learner's copy imports; copies are never rewritten, so this name stays."""

from __future__ import annotations

from ipu_course.programs.lab.first_cell import start

__all__ = ["start"]
