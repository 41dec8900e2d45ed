"""Will the lessons run here? ``python -m ipu_course doctor``, or ``doctor()`` in a notebook."""

from __future__ import annotations

__all__ = ["doctor"]


def doctor(brief: bool = False) -> None:
    """Look over this machine and print what was found; ``brief`` prints one line a check, without details."""
    from ipu_course.programs.doctor.examination import examine
    from ipu_course.programs.doctor.finding import brief_text, full_text

    print((brief_text if brief else full_text)(examine()))
