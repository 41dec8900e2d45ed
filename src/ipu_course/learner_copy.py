"""What the first cell of every learner's copy imports; copies are never rewritten, so this name stays."""

from __future__ import annotations

from ipu_course import engine
from ipu_course.loaded_packages import refuse_replaced_packages

__all__ = ["start"]


def start(lesson: str) -> None:
    """Show the learner's progress at the start of ``lesson``, such as "02"; from now on, results wait for guesses.

    Raises ``ImportError`` if the lesson cannot run before the kernel is restarted, or with another torch.
    """
    refuse_replaced_packages()
    engine.refuse_other_torch()
    # Imported now, because this draws on the packages that were just looked at.
    from ipu_course.programs.lab.first_cell import start as show_progress

    show_progress(lesson)
